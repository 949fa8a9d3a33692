# The server: `fencepostd`, for every role. What is installed is what the locks say, checked by hash.

FROM python:3.11-slim AS build
WORKDIR /src
# The whole lock has the build backend; this stage is thrown away.
COPY requirements.lock requirements-server.lock ./
RUN pip install --no-cache-dir --require-hashes -r requirements.lock
RUN python -m venv /opt/fencepost \
 && /opt/fencepost/bin/pip install --no-cache-dir --require-hashes -r requirements-server.lock
COPY . .
RUN pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir /wheels . \
 && /opt/fencepost/bin/pip install --no-cache-dir --no-deps --no-index /wheels/*.whl

FROM python:3.11-slim
RUN useradd --system --uid 10001 --home-dir /var/lib/fencepost --create-home fencepost
COPY --from=build /opt/fencepost /opt/fencepost
ENV PATH=/opt/fencepost/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    FENCEPOST_HOST=0.0.0.0 \
    FENCEPOST_PORT=8080 \
    FENCEPOST_STATE=/var/lib/fencepost
USER fencepost
WORKDIR /var/lib/fencepost
VOLUME /var/lib/fencepost
EXPOSE 8080
ENTRYPOINT ["fencepostd"]
CMD ["--help"]
