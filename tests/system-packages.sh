# Sees to the Debian packages the tests need: installs what is missing where it may, else says what is skipped.
missing=
PATH="$PATH:/usr/sbin:/sbin"
command -v chromium >/dev/null 2>&1 || missing="$missing chromium"
command -v sshd >/dev/null 2>&1 || missing="$missing openssh-server"
command -v ssh >/dev/null 2>&1 || missing="$missing openssh-client"
{ command -v ip && command -v tc; } >/dev/null 2>&1 || missing="$missing iproute2"
{ command -v unshare && command -v nsenter; } >/dev/null 2>&1 || missing="$missing util-linux"
[ -n "$missing" ] || exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    export DEBIAN_FRONTEND=noninteractive
    # shellcheck disable=SC2086 # one word a package
    if { apt-get update -qq && apt-get install -y -qq --no-install-recommends $missing; } >/dev/null 2>&1; then
        exit 0
    fi
fi
[ -z "${ROUNDLOG_REQUIRE_ALL:-}" ] || { echo "error: can't install:$missing" >&2; exit 1; }
echo "note: not installed and not installable here:$missing; tests that need them are skipped" >&2
