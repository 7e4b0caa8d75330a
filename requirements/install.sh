#!/bin/sh
# Puts what a lock says, and this project itself, into .venv.
#
#   sh requirements/install.sh runtime   what the service and `make demo` need
#   sh requirements/install.sh dev       the same and what tests, checks and benchmarks need
#   sh requirements/install.sh python    only print the interpreter that would be used
#
# Keeps: every package is pinned and hash-checked, none is compiled (pyspark, which comes as source only, is Python and
# jars). A stamp in .venv holds a checksum of all that decides its content, so a second run starts neither pip nor
# Python. `dev` is a superset of `runtime` with the same pins; installing `runtime` takes the `dev` stamp away, since
# the packages may then be others than that lock says.
# Goes wrong: no Python of a fitting version or without its venv module, no network, no wheel for this platform; each
# ends in one line on stderr and status 1, and no stamp, so that the next run begins again.
# uv installs, in a quarter of pip's CPU. It reads no configuration of pip: where pip has an index, a proxy or the like of
# its own, and where uv fails, pip installs the same packages by the same hashes. uv itself comes by pip and dev.lock.
# PYTHON=… names an interpreter. Index, proxy and certificates are pip's own configuration; none is named here.
set -eu
cd "$(dirname "$0")/.."
want=${1:-runtime}

fail() {
    echo "compactor: $*" >&2
    exit 1
}

# The first interpreter that is new enough and can make an environment. Debian ships Python without ensurepip.
find_python() {
    without_venv=
    for candidate in ${PYTHON:-python3.14 python3.13 python3.12 python3.11 python3}; do
        "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 || continue
        if "$candidate" -c 'import ensurepip, venv' >/dev/null 2>&1; then
            echo "$candidate"
            return
        fi
        without_venv=${without_venv:-$candidate}
    done
    if [ -n "$without_venv" ]; then
        fail "$without_venv has no venv or ensurepip module: install it (Debian, Ubuntu: apt-get install python3-venv)"
    fi
    found=$("${PYTHON:-python3}" --version 2>&1) || found="no ${PYTHON:-python3}"
    fail "Python 3.11 or newer is needed and was not found ($found): install it, or name it with PYTHON=…"
}

# The path counts because an environment cannot be moved, this script because it decides how things are installed.
key() {
    { pwd && cat "requirements/build.lock" "requirements/$1.lock" pyproject.toml requirements/install.sh; } | cksum
}

stamped() {
    [ -x .venv/bin/python ] && [ -f ".venv/installed-$1" ] && [ "$(cat ".venv/installed-$1")" = "$(key "$1")" ]
}

case $want in
    python) find_python && exit ;;
    runtime | dev) ;;
    *) fail "install.sh was asked for '$want': ask for runtime, dev or python" ;;
esac
[ -f "requirements/$want.lock" ] || fail "requirements/$want.lock is missing: take it from version control"
! stamped "$want" || exit 0

# An environment that cannot run, or runs a Python too old, is replaced; a good one is updated.
if ! .venv/bin/python -c 'import sys, pip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
    python=$(find_python)
    "$python" -m venv --clear .venv || fail "$python could not make an environment in .venv: see above"
fi

echo "compactor: installing the $(grep -c == "requirements/$want.lock") packages of requirements/$want.lock into .venv:" \
    "one to five minutes, without further output" >&2
rm -f .venv/installed-runtime .venv/installed-dev
PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1 PIP_ROOT_USER_ACTION=ignore
export PIP_DISABLE_PIP_VERSION_CHECK PIP_NO_INPUT PIP_ROOT_USER_ACTION
pip() {
    .venv/bin/python -m pip install -qq --progress-bar off --no-compile "$@" ||
        fail "pip could not install the $want packages: see above, then run this again"
}

# The settings below change neither index nor content. Where uv lacks a certificate or a folder, it fails, and pip goes on.
pip_is_unconfigured() {
    others=$(.venv/bin/python -m pip config list) || return 1
    others=$(echo "$others" | sed -e 's/=.*//' -e 's/.*\.//' | grep -v -x -e '' -e cert -e default-timeout -e timeout \
        -e retries -e disable-pip-version-check -e find-links -e no-cache-dir -e no-compile -e no-input -e progress-bar \
        -e quiet -e root-user-action) || return 0
    [ -z "$others" ]
}

uv() {
    rm -rf .venv/installer
    awk '/^uv==/ { uv = 1 } uv { print } uv && !/\\$/ { exit }' requirements/dev.lock >.venv/uv.lock
    if [ -n "${SSL_CERT_FILE:=${PIP_CERT:-}}" ]; then export SSL_CERT_FILE; else unset SSL_CERT_FILE; fi
    [ -z "${PIP_NO_CACHE_DIR:-}" ] || export UV_NO_CACHE=1
    .venv/bin/python -m pip install -qq --progress-bar off --no-compile --only-binary :all: --require-hashes \
        --target .venv/installer -r .venv/uv.lock &&
        .venv/installer/bin/uv pip install -q --python .venv/bin/python --require-hashes --only-binary :all: \
            --no-binary pyspark --no-deps --no-build-isolation --config-settings-package "pyspark:$stored" \
            -r "requirements/$want.lock"
}

# The build backend first, from the lock: with build isolation pip would fetch one that is not pinned. pyspark's wheel is
# 500 MB of jars, which are compressed already.
pip --require-hashes --only-binary :all: -r requirements/build.lock
stored=--build-option=--compression=stored
if ! pip_is_unconfigured || ! uv; then # pip goes on where uv ended
    pip --require-hashes --only-binary :all: --no-binary pyspark --no-build-isolation --use-pep517 \
        --config-settings "$stored" -r "requirements/$want.lock"
fi
rm -rf .venv/installer .venv/uv.lock
# `compat` puts this folder itself on the path, so that a package added later is found without installing again.
pip --no-deps --no-build-isolation --config-settings editable_mode=compat -e .

# A service may run as a user that cannot write here. In `dev`, Python compiles what is imported: a third of the files.
if [ "$want" = runtime ]; then
    .venv/bin/python -m compileall -qq -j 0 .venv/lib || :
fi

key "$want" >".venv/installed-$want"
[ "$want" = runtime ] || key runtime >.venv/installed-runtime
