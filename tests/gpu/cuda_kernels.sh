#!/usr/bin/env bash
# What nvcc said of the kernels (build/cuda-kernels.txt): each was compiled for every target, and none spills
# registers. And what it made of them: packs of 16 bytes are loaded whole, and what tensor cores multiply is loaded as
# matrices, few enough for each product.
#
# usage: tests/gpu/cuda_kernels.sh TABLE TARGETS MACHINE_CODE OBJECT...   TARGETS: EPS_CUDA_CODE
set -euo pipefail
table=$1 targets=$2 machine_code=$3
shift 3
spilling=$(awk 'NR > 1 && $5 > 0' "$table")
[ -z "$spilling" ] || {
    echo "kernels that spill registers:" >&2
    cat <(head -n 1 "$table") <(echo "$spilling") >&2
    exit 1
}
for target in $(tr ' ,' '\n\n' <<<"$targets" | grep ^sm_); do
    n=$(awk -v target=$target 'NR > 1 && $1 == target' "$table" | wc -l)
    [ "${kernels=$n}" -eq "$n" ] && [ "$n" -gt 0 ] || {
        echo "$target has $n kernels of $kernels" >&2
        exit 1
    }
done
[ -n "${kernels-}" ] || { echo "no machine code was asked for: $targets"; exit 77; }
echo "$kernels kernels, $(awk 'NR > 1 && $2 > most { most = $2 } END { print most }' "$table") registers at most"

rc=0
code=$("$machine_code" "$@") || rc=$?
[ $rc -ne 77 ] || exit 0 # it has said why
[ $rc -eq 0 ] || exit 1
# Fields: target, matrix loads, products, copies, loads of 16 bytes, of 1 or 2, stores of 16, of 1 or 2, bytes in flight, kernel.
# Kernels are made for packs of 8 bf16 or fp16, or 4 floats; cached attention also loads a value and a sink by itself. A thread has 4
# packs in flight, of which an instruction may wait for one before the last (3); of a sum's norm 4 of each operand; of a norm's
# gradient dy, x and dx of its next row, 2 packs each. Fast attention: 3 matrix loads for 8 products at most, backward 5; with heads of 256, 5 and 7; the kernel
# of queries with a bias, whose tiles of 128 columns have 32 keys, 6, of which an eighth happens once.
c++filt <<<"$code" | awk -v kernels="$kernels" '
    NR == 1 { next }
    {
        name = $10
        for (i = 11; i <= NF; i++)
            name = name " " $i
        n_of[$1]++
    }
    function must(ok, what) {
        if (!ok) {
            print $1 ": " name ": " what > "/dev/stderr"
            failed = 1
        }
    }
    /<(bf16|fp16), 8[,>]|<8, / { packed++; must($5 > 0, "loads no pack of 16 bytes")
         must($6 <= (/xielu|attend</ ? 2 : 1), $6 " loads of single values") } # two numbers for all elements; a query, a sink
    /<float, 4[,>]|<4, / { packed++; must($5 > 0, "loads no pack of 16 bytes") }
    / (norm_rows<((bf16|fp16), 8|float, 4), .*_row<[a-z0-9]+, [48], true>, true>|log_sum_exp_rows<true)/ { held++; must($9 >= 64, $9 " bytes in flight") }
    / norm_rows<((bf16|fp16), 8|float, 4), [a-z_]+, sum_row<[a-z0-9]+, [48], true>, true>/ { must($9 >= 128, $9 " bytes in flight: not both operands") }
    / over_rows<[48], / && !/ regrouped</ { held++; # of a copy that regroups columns, places take divisions
         must($9 >= 48, $9 " bytes in flight") }
    / norm_gradient_rows<(bf16|fp16), 8, [a-z_]+, true, / { held++; must($9 >= 96, $9 " bytes in flight: not the next row") }
    / attend(_backward)?<(bf16|fp16), (64|128|256), / {
        fast++
        most = (name ~ /attend</ ? 3 : 5) + (name ~ /16, 256,/ ? 2 : 0) + (name ~ /16, 128, \(sought\)0, true, \(reach\)4/)
        must(8 * $2 <= most * $3, $2 " matrix loads for " $3 " products")
        must($3 > 0, "no products on tensor cores")
        must($2 > 0, "no matrix loads")
        must($4 > 0, "no asynchronous copies")
        must($6 <= (/attend</ ? 4 : 0) && $8 == 0, $6 " loads and " $8 " stores of single values") # forward loads the sink, once for each row of a lane
    }
    END {
        for (target in n_of)
            if (n_of[target] != kernels) {
                print target ": machine code of " n_of[target] " kernels of " kernels > "/dev/stderr"
                failed = 1
            }
        print packed + 0 " times whole packs, " held + 0 " times many in flight, " fast + 0 " times tensor cores"
        exit failed || !packed || !held || !fast
    }'
