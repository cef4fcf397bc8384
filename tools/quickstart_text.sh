#!/usr/bin/env bash
# Makes the quickstart's text of the Jargon File 4.4.7, a dictionary of hackers' words that is in the public domain, of
# Debian's package jargon-text. A line is a paragraph, without the breaks of its lines. Of every ten entries the last goes
# to HELD, and the others to TRAIN: no sentence of HELD is trained on.
#
# usage: tools/quickstart_text.sh TRAIN HELD
set -euo pipefail
[ $# -eq 2 ] || { echo "usage: tools/quickstart_text.sh TRAIN HELD" >&2; exit 2; }

package=jargon-text
file=usr/share/doc/$package/jargon.txt.gz
entries() {
    LC_ALL=C awk -v train="$1" -v held="$2" '
        function end() { if (paragraph != "") print paragraph >to; paragraph = "" }
        /^ +Part.*III/ { over = to != "" } # no more entries
        over || /\342\224/ { next } # nor lines of tables
        /^   :[^:]*:/ { end(); n++; to = n % 10 ? train : held }
        to { gsub(/^[ \t]+|[ \t]+$/, ""); paragraph = paragraph (paragraph == "" ? "" : " ") $0 }
        to && $0 == "" { sub(/ $/, "", paragraph); end() }
        END { end() }'
}

# Some systems install no documentation: the file is then taken out of the package.
if [ -r "/$file" ]; then
    gzip -dc "/$file"
else
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    if ! (cd "$work" && apt-get -qq download "$package" && dpkg-deb -x ./*.deb .) >"$work/log" 2>&1; then
        tail -n 3 "$work/log" >&2
        echo "quickstart_text.sh: no text: apt-get install $package, or give your own by quickstart.sh --data FILE" >&2
        exit 1
    fi
    gzip -dc "$work/$file"
fi | entries "$1" "$2"
