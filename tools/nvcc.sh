#!/usr/bin/env bash
# nvcc.sh REPORT NVCC OPTION...: runs nvcc and keeps its output on each kernel (ptxas -v) in REPORT; shows it only on
# failure.
set -uo pipefail
report=$1
shift
mkdir -p "$(dirname "$report")" # make does not
"$@" >"$report.new" 2>&1 || {
    status=$?
    grep -v '^ptxas info' "$report.new" >&2
    rm -f "$report.new"
    exit $status
}
mv "$report.new" "$report"
