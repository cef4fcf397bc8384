#!/usr/bin/env bash
# Installs the Debian packages that this machine lacks of those that the build needs, and gnuplot, which draws a run's picture;
# with --tests, those for testing, too.
# Prints nothing if nothing is missing. Uses sudo unless run by root.
set -euo pipefail

build=(build-essential cmake ninja-build pkg-config file
       libuv1-dev libnanomsg-dev libhwloc-dev libjansson-dev libxxhash-dev libpcre2-dev libutf8proc-dev zlib1g-dev libzstd-dev
       libpng-dev libjpeg62-turbo-dev
       libncurses-dev libsodium-dev check
       jargon-text  # the quickstart's text
       gnuplot-nox) # which draws the picture of a run
tests=(clang libclang-rt-14-dev clang-format fish groff-base libopenmpi-dev openmpi-bin procps python3-venv
       tmux zsh)

case "${1-}" in
"") wanted=("${build[@]}") ;;
--tests) wanted=("${build[@]}" "${tests[@]}") ;;
--help | -h) echo "usage: tools/setup.sh [--tests]"; exit ;;
*) echo "setup.sh: unknown option $1; usage: tools/setup.sh [--tests]" >&2; exit 2 ;;
esac

installed() {
    dpkg-query -W -f='${db:Status-Abbrev}' "$1" 2>/dev/null | grep -q '^.i'
}

if ! command -v apt-get dpkg-query >/dev/null; then
    echo "setup.sh: this needs Debian's apt; on another system install yourself: ${wanted[*]}" >&2
    exit 1
fi
missing=()
for package in "${wanted[@]}"; do
    installed "$package" || missing+=("$package")
done
[ ${#missing[@]} -gt 0 ] || exit 0

as_root=()
if [ "$(id -u)" -ne 0 ]; then
    if ! command -v sudo >/dev/null; then
        echo "setup.sh: not root and no sudo; as root: apt-get install ${missing[*]}" >&2
        exit 1
    fi
    as_root=(sudo)
fi

echo "Installing ${missing[*]}"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
if ! "${as_root[@]}" apt-get update >"$log" 2>&1 ||
    ! "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "${missing[@]}" \
        >"$log" 2>&1; then
    tail -n 20 "$log" >&2
    echo "setup.sh: apt-get failed; try: apt-get update && apt-get install ${missing[*]}" >&2
    exit 1
fi
