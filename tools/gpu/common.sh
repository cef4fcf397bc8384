# shellcheck shell=bash
# Shared by the parts of tools/gpu_check.sh, which have its options in their environment.
# shellcheck disable=SC2154,SC2034

# The profile of this machine belongs to this build, not to the user.
XDG_CACHE_HOME=$(realpath -m "${simulate:-$bin}/../cache") EPS_TESTS_DIR=$PWD/tests
# Environment of our own programs.
ours=(env LD_LIBRARY_PATH="$(libraries "$bin")")
readonly ours
export XDG_CACHE_HOME EPS_TESTS_DIR XDG_RUNTIME_DIR=${XDG_RUNTIME_DIR:-/tmp} PATH=$PATH:/usr/local/cuda/bin:/usr/local/cuda/compute-sanitizer

# finding VERDICT NAME TEXT: records one finding, without this machine's folders. passed, failed: of a claim; short: measured
# below its target; missing: could not be tested; fact: no claim
finding() {
    local text=${3//$'\n'/ }
    text=${text//"$PWD/"/}
    [ -z "${work-}" ] || text=${text//"$work/"/}
    printf '%s|%s|%s|%s\n' "$part" "$2" "$1" "$text" | tee -a "$results"
}
passed() { finding passed "$@"; }
failed() { finding failed "$@"; }
missing() { finding missing "$@"; }
fact() { finding fact "$@"; }

# measured NAME RATIO TARGET TEXT: passed or short
measured() {
    if awk -v a="$2" -v b="$3" 'BEGIN { exit !(a + 0 >= b + 0) }'; then
        passed "$1" "$2 (target $3): $4"
    else
        finding short "$1" "$2 (target $3): $4"
    fi
}

# limited SECONDS COMMAND...: runs a command; its output goes to the log and to $work/said; 124: it took longer. The shell
# stays interruptible, so that a part that is ended early also ends its command.
limited() {
    local seconds=$1 rc
    shift
    at=$*
    [ -z "$simulate" ] || seconds=$((20 * seconds)) # it is slow
    printf '\n$ %s\n' "$*" >>"$log"
    timeout -k 5 "$seconds" "$@" >"$work/said" 2>&1 <&0 &
    wait $!
    rc=$?
    at=''
    cat "$work/said" >>"$log"
    return $rc
}

# Findings of a part that is told to end; parts whose findings come late override it.
cut_off() { :; }

# ended: cleans up a part that is told to end: ends its processes and logs their output so far
ended() {
    local running
    mapfile -t running < <(jobs -pr)
    [ -z "${at-}" ] || fact "$part-cut" "it was at: ${at#env LD_LIBRARY_PATH=* }"
    cut_off
    [ ${#running[@]} -eq 0 ] || kill "${running[@]}" 2>/dev/null
    cat "$work/said" >>"$log" 2>/dev/null
    for pid in "${running[@]}"; do
        timeout 4 tail --pid="$pid" -f /dev/null || kill -KILL "$pid" 2>/dev/null
    done
    exit 143
}

# why RC SECONDS: the reason for the status of a limited command
why() {
    if [ "$1" -eq 124 ] || [ "$1" -eq 137 ]; then
        echo "took longer than $2 s"
    else
        echo "status $1: $(grep -v '^ *$' "$work/said" | tail -n 1 | cut -c 1-300)"
    fi
}

# claim NAME SECONDS TEXT COMMAND...: passed if the command succeeds
claim() {
    local name=$1 seconds=$2 text=$3 rc
    shift 3
    limited "$seconds" "$@"
    rc=$?
    if [ $rc -eq 0 ]; then
        passed "$name" "$text"
    else
        failed "$name" "$text: $(why $rc "$seconds")"
    fi
    return $rc
}

# The folder of the programs: eps, epsd, eps-worker and the backend.
programs() {
    if [ -z "$simulate" ]; then
        echo "$bin"
    else
        mkdir -p "$work/bin"
        cp -u "$bin"/eps "$bin"/epsd "$bin"/eps-worker "$simulate/eps-cuda.so" "$work/bin/"
        echo "$work/bin"
    fi
}

# Samples the device's clocks every half second until watch_clocks_end, which records their median as a fact.
watch_clocks() {
    [ -z "$simulate" ] || return 0
    nvidia-smi --query-gpu=clocks.sm,clocks.mem,power.draw,temperature.gpu --format=csv,noheader,nounits -lms 500 \
        >"$work/clocks" 2>/dev/null &
    clocks_pid=$!
}
watch_clocks_end() {
    [ -z "$simulate" ] || return 0
    kill "$clocks_pid" 2>/dev/null
    wait "$clocks_pid" 2>/dev/null
    fact "clocks-$part" "$(sort -t , -k 1n "$work/clocks" | awk -F ', *' '{ line[NR] = $0 } END {
        if (!NR) { print "nvidia-smi tells none"; exit }
        split(line[int((NR + 1) / 2)], f, ", *")
        printf "in the middle %s MHz (memory %s MHz), %s W, %s degrees; %d looks", f[1], f[2], f[3], f[4], NR }')"
}

# middle: median of the numbers on standard input, one per line
middle() {
    sort -g | awk '{ v[NR] = $1 } END { print NR ? v[int((NR + 1) / 2)] : "" }'
}

# module: the backend under test
module() {
    realpath "${simulate:-$bin}/eps-cuda.so"
}

# cuda_tests TREE: the tests that run on any given backend
cuda_tests() {
    cat "$1/cuda-tests.txt" 2>/dev/null
}

# join_cudnn: unpacks what tools/gpu_prepare.sh cudnn packed, if all its parts have been carried here
join_cudnn() {
    local unpack=(xz -dc)
    [ -e cudnn/sums ] && [ ! -e cudnn/lib ] || return 0
    (cd cudnn && sha256sum --quiet -c sums) >>"$log" 2>&1 || return 0
    command -v xz >/dev/null || unpack=("$python" -c 'import lzma, shutil, sys
shutil.copyfileobj(lzma.open(sys.stdin.buffer), sys.stdout.buffer)')
    mkdir -p cudnn/new
    cat cudnn/part.* | "${unpack[@]}" 2>>"$log" | tar -x -C cudnn/new 2>>"$log" && mv cudnn/new/lib cudnn/lib
    rm -rf cudnn/new
}

# take_cudnn: an EPS_CUDNN that is set stays, "" for none; else all of what was carried along, of the toolkit, the system, the
# machine's library path and Python's packages, of which the worker takes the newest
take_cudnn() {
    local dir all='' own=${LD_LIBRARY_PATH-}
    [ -z "${EPS_CUDNN+set}" ] || return 0
    join_cudnn
    for dir in "$PWD/cudnn/lib" /usr/local/cuda/lib64 /usr/lib/x86_64-linux-gnu ${own//:/ } \
        "$("$python" -c 'import nvidia.cudnn as c; print(list(c.__path__)[0] + "/lib")' 2>/dev/null)"; do
        [ ! -e "$dir/libcudnn_graph.so.9" ] || all+=${all:+:}$dir
    done
    [ -z "$all" ] || export EPS_CUDNN=$all
}

# take_profile EPS [SECONDS]: measures this machine for plans, once for all parts that use these programs; fails if it cannot
take_profile() {
    local file=$XDG_CACHE_HOME/eps/profile-cuda.json
    [ -z "$simulate" ] || return 0 # whose products take minutes
    [ -s "$file" ] || claim profile "${2:-80}" "eps bench measures the device" "${ours[@]}" "$1" bench --device cuda:0 --profile || return
    fact profile-"$part" "$(tr -d '\n' <"$file" | tr -s ' ')"
}

# token_bytes VOCABULARY: as in files of tokens
token_bytes() {
    [ "$1" -gt 65536 ] && echo 4 || echo 2
}

# random_tokens FILE VOCABULARY N [LEAST]: from LEAST on
random_tokens() {
    LC_ALL=C awk -v n="$3" -v v="$2" -v least="${4:-0}" 'BEGIN {
        srand(1)
        for (i = 0; i < n; i++) {
            t = least + int(rand() * (v - least))
            printf "%c%c", t % 256, int(t / 256) % 256
            if (v > 65536) printf "%c%c", int(t / 65536), 0
        } }' >"$1"
}

# field NAME FILE: the values of this key in a run's metrics.jsonl, one per step
field() {
    sed -n "s/.*\"$1\": *\([-0-9.eE+]*\).*/\1/p" "$2"
}
