#!/usr/bin/env bash
# Who includes whom, from the #include lines of all sources:
#   device/            itself and proto/
#   eps/               itself and proto/; hosts < store < relay < base < job < save < step < observe < the files of eps/ itself
#   client/            itself and proto/; daemon < text < data < images < corpus < order < task < model < options < record < run < ask:
#                      each folder those before it
#   tools/             itself and client/eps.h (bench/ and gpu/ measure internals: anything)
#   proto/             base < operation < model < plan < step < wire < net: each folder those before it; in plan,
#                      memory < time < the files of proto/plan/ itself
#   *_state.h, *_internal.h: their own folder, those within it, and its tests, alone
#   the numbers of a family of models, or of a group of families: their own files (tests and benchmarks: anything)
# And in client/, device/, eps/, proto/ and tools/:
#   a file has at most 600 lines
#   a .c or .cu file begins with a comment, its first line, before its includes: what the code cannot say
#
# usage: tools/rooms.sh         prints each line and each file that breaks a rule; exit status 1 if there is one
set -euo pipefail
cd "$(dirname "$0")/.."

most_lines=600

status=0
while read -r lines path; do
    if [ "$lines" -gt $most_lines ] && [ "$path" != total ]; then
        echo "$path: $lines lines: more than $most_lines"
        status=1
    fi
done < <(find client device eps proto tools -type f -regextype egrep -regex '.*\.(c|h|cu|cuh)' -exec wc -l {} +)

find client device eps proto tools -type f -regextype egrep -regex '.*\.(c|cu)' -exec awk '
    FNR == 1 && !/^\/\*/ { print FILENAME ": begins without a comment"; found = 1 }
    END { exit found }' {} + || status=1

find client device eps proto tests tools -type f -regextype egrep -regex '.*\.(c|h|cpp|hpp|cu|cuh)' -print0 |
    xargs -0 grep -nE '^#include "' | awk -F: '
    function folder(path) { sub(/\/[^\/]*$/, "", path); return path }
    function top(path) { sub(/\/.*/, "", path); return path }
    function order(path) { split(path, part, "/"); return index(" " orders[part[1]], " " part[2] " ") }
    function plan_order(path) { return path ~ /^proto\/plan\/memory\// ? 1 : path ~ /^proto\/plan\/time\// ? 2 : 3 }
    function wrong(rule) { print $1 ":" $2 ": " target ": " rule; found = 1 }
    BEGIN {
        others["eps"] = others["device"] = others["client"] = "proto"
        orders["proto"] = "base operation model plan step wire net "
        orders["eps"] = "hosts store relay base job save step observe "
        orders["client"] = "daemon text data images corpus order task model options record run ask "
    }
    {
        split($3, quoted, "\""); target = quoted[2]
        if (target !~ /\//) # a public header, which is installed without folders
            target = folder($1) "/" target
        from = top($1); to = top(target); own = folder($1)
        if (own ~ /^tests\//) sub(/^tests\//, "", own)
        if (target ~ /_(state|internal)\.h$/ && index(own "/", folder(target) "/") != 1)
            wrong("private to " folder(target))
        if (from in others && to != from && to != others[from])
            wrong(from "/ includes itself and proto/")
        if (from == "tools" && $1 !~ /^tools\/(bench|gpu)\// && to != "tools" && target != "client/eps.h")
            wrong("the command uses client/eps.h alone")
        if (from == "proto" && to != "proto")
            wrong("proto/ includes itself")
        if (from == "eps" && to == from && order($1) && !order(target))
            wrong("the folders of eps/ include none of its own files")
        if (from == to && order($1) && order($1) < order(target))
            wrong(from "/ is " orders[from] "in this order")
        if (target ~ /^proto\/model\/(decoder|decoder_delta|decoder_moe|encoder|gpt2|t5|dynamic_conv|[a-z]*_family)\.h$/ && from != "tests" &&
            $1 !~ /^proto\/model\/(families\/|(decoder|encoder|image)(_family|_delta|_moe)?\.[ch]$)/ && $1 !~ /^tools\/bench\//)
            wrong("the families read their own numbers alone")
        if ($1 ~ /^proto\/plan\// && target ~ /^proto\/plan\// && plan_order($1) < plan_order(target))
            wrong("proto/plan/ is memory, time, its own files, in this order")
    }
    END { exit found }' || status=1
exit $status
