#!/usr/bin/env bash
# Makes a text of licences that every Debian has in /usr/share/common-licenses (package base-files), so that
# it is the same everywhere: TRAIN gets five of GNU's, a line for each paragraph, twenty times in twenty orders, so that a
# sentence stands at many places of the model's window; HELD gets a sixth, which resembles them.
#
# usage: tools/bench/licences_text.sh TRAIN HELD
set -euo pipefail
folder=/usr/share/common-licenses
licences=(GPL-1 GPL-2 GPL-3 LGPL-2 LGPL-3)

paragraphs() { # FILE
    LC_ALL=C awk 'BEGIN { RS = "" } { gsub(/[ \t\f\n]+/, " "); sub(/^ /, ""); print $0 "\n" }' "$folder/$1"
}

for stride in 1 2 3 4; do # 5 is prime: each stride visits all of them
    for first in 0 1 2 3 4; do
        for i in 0 1 2 3 4; do
            paragraphs "${licences[(first + i * stride) % 5]}"
        done
    done
done >"$1"
paragraphs LGPL-2.1 >"$2"
