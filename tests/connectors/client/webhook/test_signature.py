"""Signatures are those of Standard Webhooks."""

from __future__ import annotations

import pytest

from fencepost.webhook.signature import Signer
from tests.connectors.client.webhook.receiver import SECRET

OTHER = "whsec_" + "QUJD" * 11


def test_a_signature_is_that_of_the_standard_s_own_example() -> None:
    """The one that the tests of its libraries have."""
    headers = Signer([SECRET]).headers("msg_p5jXN8AQM9LWM0D4loKWxJek", b'{"test": 2432232314}', 1614265330.9)
    assert headers == {
        "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        "webhook-timestamp": "1614265330",
        "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    }


def test_every_secret_signs_so_that_one_can_replace_another() -> None:
    alone = [Signer([secret]).headers("id", b"{}", 1)["webhook-signature"] for secret in (SECRET, OTHER)]
    assert Signer([SECRET, OTHER]).headers("id", b"{}", 1)["webhook-signature"] == " ".join(alone)


@pytest.mark.parametrize(
    "secret",
    [SECRET.removeprefix("whsec_"), "whsec_", "whsec_c2hvcnQ=", "whsec_***", SECRET + "A", "whsec_" + "QUJD" * 22, "ä"],
)
def test_a_secret_that_is_none_is_refused_without_being_quoted(secret: str) -> None:
    with pytest.raises(ValueError, match="secret 2 is not whsec_ and the base64 of 24 to 64 bytes") as caught:
        Signer([SECRET, secret])
    assert len(secret) < 10 or secret not in str(caught.value)


def test_nobody_signs_with_nothing() -> None:
    with pytest.raises(ValueError, match="no secret"):
        Signer([])
