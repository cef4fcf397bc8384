#!/usr/bin/env bash
# The picture on README.md's first screen, tools/bench/front.svg, of figures that tools/bench/README.md has; it must have them as
# they stand here. On the left a step's time by device memory (tools/bench/bench_budget.sh), on the right the device memory of a
# step of GPT-2 124M (tools/bench/bench_memory.sh). Needs gnuplot.
#
# usage: tools/bench/front.sh [options]      defaults in brackets
#   --out FILE [tools/bench/front.svg]
set -euo pipefail
cd "$(dirname "$0")/../.."
. tools/bench/common.sh

out=tools/bench/front.svg
take_options "out" "$@"
for figure in '508 ms in the minimum, 30.6 MB; 492, 527, 513, 491, 497 and 437 ms in 41, 56, 76, 103, 139 and 189 MB; 415 ms in 255 MB' \
    '112,769,024 bytes, as planned; PyTorch 2.15 takes 10.3 GB'; do
    grep -qF -- "$figure" tools/bench/README.md || misuse "tools/bench/README.md has no figure '$figure' any more: change this script"
done

make_work
paste <(printf '%s\n' 30.6 41 56 76 103 139 189 255) <(printf '%s\n' 508 492 527 513 491 497 437 415) >"$work/times"
gnuplot <<GNUPLOT
set terminal svg size 900,300 font "sans,13" background "white"
set output "$out"
set multiplot layout 1,2
set border 3
set tics nomirror
set lmargin 9
set grid ytics lc rgb "#dddddd"
set title "A step of a GPT-2 (11 M parameters): the same weights at each point"
set xlabel "device memory, MB"
set ylabel "ms a step"
set logscale x
set xtics (30, 50, 100, 150, 250)
set xrange [27:280]
set yrange [0:600]
plot "$work/times" with linespoints lw 2 pt 7 ps 0.7 lc rgb "#1f77b4" notitle
unset logscale x
set title "A step of GPT-2 124M, 8 x 1,024 tokens: device memory"
unset xlabel
set ylabel "GB"
set xrange [-0.7:1.7]
set yrange [0:12]
set xtics ("PyTorch" 0, "eps" 1)
set boxwidth 0.5
set style fill solid
set label "10.3 GB" at 0,10.9 center
set label "0.11 GB" at 1,0.72 center
plot "-" using 1:2:3 with boxes lc rgb variable notitle
0 10.3 0x999999
1 0.112769024 0x1f77b4
e
GNUPLOT
