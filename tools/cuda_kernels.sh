#!/usr/bin/env bash
# cuda_kernels.sh TABLE REPORT...: a line for each kernel and architecture, from ptxas -v: registers per thread, bytes of
# static shared memory, of the stack frame, and of register spills.
set -euo pipefail
table=$1
shift
{
    printf '%-8s %9s %8s %7s %7s  %s\n' target registers shared stack spilled kernel
    cat /dev/null "$@" | awk '
        function number_before(word,   text) {
            return match($0, "[0-9]+ " word) ? substr($0, RSTART, RLENGTH) + 0 : 0
        }
        /Compiling entry function/ { split($0, quoted, "\047"); kernel = quoted[2]; target = quoted[4] }
        /bytes stack frame/ {
            stack = number_before("bytes stack frame")
            spilled = number_before("bytes spill stores") + number_before("bytes spill loads")
        }
        /Used [0-9]+ registers/ && kernel {
            printf "%-8s %9d %8d %7d %7d  %s\n", target, number_before("registers"),
                   number_before("bytes smem"), stack, spilled, kernel
            kernel = ""
        }
    ' | c++filt | sort -k6 -k1,1
} >"$table.new"
mv "$table.new" "$table"
