# Compactor with its Java, for `compactor serve` and every other command. Not root; data in /var/lib/compactor.
#
#   docker build --tag compactor .
#   docker run --volume compactor:/var/lib/compactor compactor --help
#
# Beyond loopback the service wants tokens (docs/security.md): set COMPACTOR_AUTH_TOKEN_SECRET_KEY. A trial with database,
# object store and Spark cluster is in deploy/compose.yaml, a Helm chart in deploy/helm.
FROM python:3.12-slim-bookworm AS build
WORKDIR /opt/compactor
COPY requirements requirements
COPY pyproject.toml README.md ./
COPY api api
COPY compactor compactor
COPY migrations migrations
COPY storage storage
RUN sh requirements/install.sh runtime

FROM python:3.12-slim-bookworm
# Compactor itself brings a Java; a Spark master and worker of this image want a whole one.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends default-jre-headless \
    && rm -rf /var/lib/apt/lists/* \
    && groupadd --gid 10001 compactor \
    && useradd --uid 10001 --gid 10001 --home-dir /var/lib/compactor --create-home --shell /usr/sbin/nologin compactor
COPY --from=build /opt/compactor /opt/compactor
ENV PATH=/opt/compactor/.venv/bin:$PATH \
    JAVA_HOME=/usr/lib/jvm/default-java \
    SPARK_HOME=/opt/compactor/.venv/lib/python3.12/site-packages/pyspark \
    PYSPARK_PYTHON=/opt/compactor/.venv/bin/python \
    COMPACTOR_DATA=/var/lib/compactor \
    COMPACTOR_HOST=0.0.0.0
USER 10001:10001
WORKDIR /var/lib/compactor
VOLUME /var/lib/compactor
EXPOSE 8080 6650
HEALTHCHECK --interval=10s --timeout=5s --start-period=20s \
    CMD ["python", "-m", "api.cli.healthcheck"]
ENTRYPOINT ["compactor"]
CMD ["serve"]
