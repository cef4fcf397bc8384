#!/usr/bin/env bash
# What bounds attention's kernels for heads of 128, causal, in bf16, by their machine code: the table of device/cuda/README.md,
# which explains its columns. On an H100 the bound must allow 300 TFLOP/s forward and 200 of each gradient.
#
# usage: tests/gpu/attention_bound.sh TABLE MACHINE_CODE OBJECT...   TABLE: build/cuda-kernels.txt; OBJECT: those of attention
#                                                                    and attention_backward
#
# Exit status: 0; 1 if a bound is too low, registers spill, or the code is not what the sources' tiles make; 77 if there is no
# machine code of these kernels.
set -euo pipefail
table=$1 machine_code=$2
shift 2

# Tiles of the sources: kernel, its name here, rows that a block holds, rows of a coming tile, products, TFLOP/s wanted.
tiles='attend<bf16, 128, false, (reach)0>|forward|128|32|2|300
attend_backward<bf16, 128, (sought)0, false, (reach)0, false>|queries|64|64|3|200
attend_backward<bf16, 128, (sought)1, false, (reach)0, false>|keys and values|64|32|4|200
attend_backward<bf16, 128, (sought)1, false, (reach)0, true>|the same, grouped|64|32|4|200'
# Devices: target, multiprocessors, GHz, KiB of shared memory of each, cycles of a product of 16 x 8 x 16 on a quarter of its tensor
# cores. A100: 312 TFLOP/s. H100: 989, of which mma.sync gets 63 % (Luo et al., arXiv:2402.13499). B200: not known.
devices='sm_80|108|1.41|164|8
sm_90|132|1.83|228|6.35
sm_100|148|1.85|228|0'

rc=0
code=$("$machine_code" --loops "$@") || rc=$?
[ $rc -eq 0 ] || exit $rc # it has said why
c++filt <<<"$code" | awk -v tiles="$tiles" -v devices="$devices" '
    function ceiling(x) { return x == int(x) ? x : int(x) + 1 }
    function least(a, b) { return a < b ? a : b }
    function most(a, b) { return a > b ? a : b }
    function whole(x) { return x ? sprintf("%.0f", x) : "-" }
    function kernel_from(first,    i, name) {
        for (i = first; i <= NF; i++) name = name (i > first ? " " : "") $i
        sub(/^void /, "", name)
        sub(/\(attention\)$/, "", name)
        return name
    }
    function wrong(what) {
        print "attention_bound.sh: " $1 ", " label[kernel] ": " what > "/dev/stderr"
        failed = 1
    }
    BEGIN {
        n_tiles = split(tiles, line, "\n")
        for (i = 1; i <= n_tiles; i++) {
            split(line[i], f, "|")
            order[i] = f[1]
            label[f[1]] = f[2]; held[f[1]] = f[3]; coming[f[1]] = f[4]; products[f[1]] = f[5]; wanted[f[1]] = f[6]
        }
        n_devices = split(devices, line, "\n")
        for (i = 1; i <= n_devices; i++) {
            split(line[i], f, "|")
            target[i] = f[1]
            processors[f[1]] = f[2]; ghz[f[1]] = f[3]; room[f[1]] = f[4] * 1024; cycles[f[1]] = f[5]
        }
    }
    FILENAME != "-" { if (FNR > 1) { registers[$1 kernel_from(6)] = $2; spilled[$1 kernel_from(6)] = $5 } next }
    { kernel = kernel_from(11) }
    !(kernel in label) || !($1 in ghz) { next }
    # Fields: target, issued, products, matrix loads, specials, copies, wide ones, shared bytes, the inner loops: issued, copies.
    {
        # A warp of four has a quarter of the held rows; a product multiplies 16 x 8 x 16; 128 threads copy 16 bytes each.
        if ($3 != held[kernel] / 4 * coming[kernel] * 128 * products[kernel] / 2048) wrong($3 " products")
        copies = coming[kernel] * 2 * 256 / 16 / 128
        turns = $10 ? (copies - $7) / $10 : 0
        if (turns != int(turns) || $7 + turns * $10 != copies) wrong($7 " copies, and " $10 " in loops, not " copies)
        issue = $2 + turns * $9
        tensor = $3 * cycles[$1]
        shared = ($8 + turns * $10 * 512) / 32 # bytes a cycle: a quarter of 128
        special = $5 * 8                       # four lanes a cycle
        slowest = most(shared, special)
        flop = $3 * 4096 * 4 * processors[$1] * ghz[$1] * 1e-3 # TFLOP/s of a turn in one cycle
        bound = tensor ? flop / most(most(issue, tensor), slowest) : 0
        in_turn = tensor ? flop / (tensor + most(issue - $3, slowest)) : 0
        is_forward = products[kernel] == 2
        bytes = (held[kernel] * (is_forward ? 1 : 2) + coming[kernel] * 4) * 256 + (is_forward ? 0 : coming[kernel] * 16)
        blocks = least(int(65536 / (ceiling(registers[$1 kernel] / 8) * 8 * 128)), int(room[$1] / (bytes + 1024)))
        row[$1 kernel] = sprintf("%-7s %-17s %8d  %-14s %9d %7d %6d  %5d %6s %6d %7d  %5s %7s", $1, label[kernel], $3,
            copies " x 16" ($6 > $7 ? " + " ($6 - $7) " x 4" : ""), registers[$1 kernel], spilled[$1 kernel], blocks, issue,
            whole(tensor), shared, special, whole(bound), whole(in_turn))
        n_of[$1]++
        if (spilled[$1 kernel]) wrong(spilled[$1 kernel] " bytes spill")
        if ($1 == "sm_90" && bound < wanted[kernel]) wrong("at most " int(bound) " TFLOP/s, of " wanted[kernel])
    }
    END {
        print "target  kernel            products  copies         registers spilled blocks  issue tensor shared special  bound in_turn"
        for (i = 1; i <= n_devices; i++) {
            if (!n_of[target[i]]) continue
            found = 1
            for (k = 1; k <= n_tiles; k++) {
                $1 = target[i]; kernel = order[k]
                if ($1 kernel in row) print row[$1 kernel]
                else wrong("not there, or without a loop")
            }
        }
        exit failed ? 1 : found ? 0 : 77
    }' "$table" -
