"""`fencepost webhook …`: a signed HTTP request for every run."""

from __future__ import annotations

from ipaddress import ip_network

import click

from fencepost.commandline.connection import Connection, pass_connection
from fencepost.commandline.worker_options import WorkerOptions, work_until_told, worker_options
from fencepost.webhook.addresses import Network, is_never_called
from fencepost.webhook.checked_network import CheckedNetwork
from fencepost.webhook.destinations import (
    AllowedHost,
    AllowList,
    Destination,
    DestinationRefused,
    read_allowed_host,
    read_destination,
)
from fencepost.webhook.signature import Signer
from fencepost.webhook.webhook import Webhook


class HostParam(click.ParamType):
    name = "host"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> AllowedHost:
        try:
            return value if isinstance(value, AllowedHost) else read_allowed_host(str(value))
        except DestinationRefused as refusal:
            self.fail(str(refusal), param, ctx)


class NetworkParam(click.ParamType):
    name = "cidr"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Network:
        try:
            network = ip_network(str(value))
        except ValueError as error:
            self.fail(f"{error}: a network is written as 10.1.0.0/16", param, ctx)
        if is_never_called(network[0]) and is_never_called(network[-1]):
            self.fail(f"{value} is never called: link-local, or a cloud's own", param, ctx)
        return network


class UrlParam(click.ParamType):
    name = "url"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Destination:
        try:
            return value if isinstance(value, Destination) else read_destination(str(value))
        except DestinationRefused as refusal:
            self.fail(str(refusal), param, ctx)


@click.command()
@worker_options("calls", slots=10)
@click.option(
    "--secret",
    "secrets",
    multiple=True,
    envvar="FENCEPOST_WEBHOOK_SECRET",
    show_envvar=True,
    metavar="whsec_…",
    help="Signs the calls; several while you change it (in the variable, between spaces). A command line is seen by "
    "others on the machine: prefer the variable.",
)
@click.option("--url-from-payload", is_flag=True, help='Payloads are {"url": …, "body": …}. Needs --allow-host.')
@click.option(
    "--allow-host",
    "allowed_hosts",
    type=HostParam(),
    multiple=True,
    metavar="HOST[:PORT]",
    help="May be called, or redirected to, on this port or the scheme's own; *.example.com is every host below. The "
    "host of URL is allowed anyway.",
)
@click.option("--allow-http", is_flag=True, help="Call without encryption, too.")
@click.option(
    "--allow-private",
    "private",
    type=NetworkParam(),
    multiple=True,
    metavar="CIDR",
    help="Receivers may be in this network though it is not public.",
)
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(0.1, 3600),
    default=30,
    show_default=True,
    metavar="SECONDS",
    help="For a whole call, redirects included.",
)
@click.option(
    "--connect-timeout",
    "connect_timeout_s",
    type=click.FloatRange(0.1, 3600),
    default=5,
    show_default=True,
    metavar="SECONDS",
    help="For a connection.",
)
@click.argument("destination", type=UrlParam(), metavar="[URL]", required=False)
@pass_connection
def webhook(
    connection: Connection,
    options: WorkerOptions,
    secrets: tuple[str, ...],
    url_from_payload: bool,
    allowed_hosts: tuple[AllowedHost, ...],
    allow_http: bool,
    private: tuple[Network, ...],
    timeout_s: float,
    connect_timeout_s: float,
    destination: Destination | None,
) -> None:
    """POST to URL for every run of a queue, until SIGTERM or Ctrl-C.

    The body is the payload (JSON). Fencepost-Run-Id, -Job-Id, -Attempt, -Lease-Token and -Scheduled-For say whose it
    is, and Idempotency-Key is the same on every attempt. The signature is that of Standard Webhooks: webhook-id (the
    run's id), webhook-timestamp, webhook-signature.

    \b
    What the answer makes of the run
      2xx                                   completed; a JSON body of at most 64 KiB is its result
      408, 425, 429, 5xx, none, timed out   tried again: after Retry-After (at most a day), or as the job says
      307, 308                              followed, at most 3 times, if the next host is allowed, too
      any other                             dead; the reason is the status and the beginning of the body

    Hosts must be allowed, and every address that they resolve to must be public or in an allowed network; the
    connection goes to an address that was checked. Proxies of the environment are not used. SSL_CERT_FILE names
    authorities of your own. With --payload-codec the receiver gets payloads opened, over the call's own encryption.

    \b
    Examples
      export FENCEPOST_WEBHOOK_SECRET=whsec_$(openssl rand -base64 32)
      fencepost webhook --queue mail https://hooks.example.com/mail
      fencepost webhook --queue mail --allow-http --allow-private 10.1.0.0/16 http://mailer:8080/runs
      fencepost webhook --queue bills --payload-codec bills.sealing:codec https://hooks.example.com/bills
      fencepost webhook --queue hooks --url-from-payload --allow-host '*.example.com' --slots 50
    """
    allow_list = AllowList(_allowed(destination, url_from_payload, allowed_hosts), http=allow_http)
    try:
        signer = Signer(secrets)
        if destination is not None:
            allow_list.check(destination)
    except ValueError as error:
        raise click.UsageError(
            f"{error}. Set FENCEPOST_WEBHOOK_SECRET, for instance to whsec_$(openssl rand -base64 32)."
        ) from error
    except DestinationRefused as refusal:
        raise click.UsageError(f"{refusal}. Give https, or --allow-http.") from refusal
    handler = Webhook(
        destination,
        allow_list,
        signer,
        CheckedNetwork(private),
        timeout_s=timeout_s,
        connect_timeout_s=connect_timeout_s,
    )
    work_until_told(connection, options, handler)


def _allowed(
    destination: Destination | None, url_from_payload: bool, allowed_hosts: tuple[AllowedHost, ...]
) -> tuple[AllowedHost, ...]:
    if (destination is None) != url_from_payload:
        raise click.UsageError("Which URL shall be called? Give either URL or --url-from-payload.")
    if destination is not None:
        return (*allowed_hosts, AllowedHost(destination.host, False, destination.port))
    if not allowed_hosts:
        raise click.UsageError("With --url-from-payload whoever creates jobs chooses the URL: give --allow-host.")
    return allowed_hosts
