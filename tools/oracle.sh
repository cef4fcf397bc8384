#!/usr/bin/env bash
# The rows of tests/README.md that no suite runs, because they need PyTorch, transformers, TRL, PEFT or their kin: each script
# of tests/oracle that compares eps with them. Scripts that only write fixtures (make_NAME.py) are not among them: the suite
# reads what they wrote.
set -euo pipefail

names=(float64 check_types check_coded check_fp8 check_saved check_passed check_nets check_adapters check_gguf spelled_numbers
    side_tokens family_tokens templates named_templates conversations draw_keys draw_adapters tokens_real masked classify tune
    tune_preferences own_loss families family_steps distribution decoders encoders)
usage() {
    cat <<END
usage: tools/oracle.sh [--full] [--again] [--python PYTHON] [--llama DIR] [--list] [NAME...]

Runs scripts of tests/oracle, all of them or by name, and prints how many passed and failed. Build first:
cmake --preset release && cmake --build build.

  --full           as many draws, models and steps as tests/README.md states (many hours); otherwise a few of each
  --again          also those that passed here before, with the same programs and scripts; the others always run
  --python PYTHON  an interpreter that has what tests/oracle/requirements.txt names; otherwise that is installed in a
                   virtual environment, build/oracle (some GB)
  --llama DIR      a checkout of llama.cpp, which check_gguf needs; without it check_gguf is skipped
  --list           the names

distribution, decoders and encoders print figures to compare with tests/README.md's, and pass if they get to the end.
What each printed is in build/oracle-runs/NAME.log.
END
}

misuse() {
    echo "oracle.sh: $1; try: tools/oracle.sh --help" >&2
    exit 2
}

scope=few again=false python='' llama='' chosen=()
while [ $# -gt 0 ]; do
    case $1 in
    --help | -h) usage; exit ;;
    --list) printf '%s\n' "${names[@]}"; exit ;;
    --full) scope=full ;;
    --again) again=true ;;
    --python | --llama)
        [ $# -gt 1 ] || misuse "$1 needs a value"
        if [ "$1" = --python ]; then python=$2; else llama=$2; fi
        shift ;;
    *)
        [[ " ${names[*]} " == *" $1 "* ]] || misuse "$1 is none of: ${names[*]}"
        chosen+=("$1") ;;
    esac
    shift
done
[ ${#chosen[@]} -gt 0 ] || chosen=("${names[@]}")
if [ -n "$python" ]; then
    python=$(command -v "$python") || misuse "--python names no program"
    python=$(cd "$(dirname "$python")" && pwd)/${python##*/} # not what it links to: that has other packages
fi
if [ -n "$llama" ]; then
    [ -f "$llama/convert_hf_to_gguf.py" ] || misuse "--llama: $llama has no convert_hf_to_gguf.py"
    llama=$(realpath "$llama")
fi
cd "$(dirname "$0")/.."
for program in eps epsd eps-worker test_exact_logits test_dump test_side test_template test_conversation bench_tokens; do
    if [ ! -x "build/bin/$program" ]; then
        echo "oracle.sh: build/bin/$program is missing; try: cmake --preset release && cmake --build build" >&2
        exit 1
    fi
done
if [ -z "$python" ]; then
    if [ ! -x build/oracle/bin/pip ] && ! python3 -m venv build/oracle; then
        echo "oracle.sh: python3 cannot make a virtual environment; try: apt-get install python3-venv" >&2
        exit 1
    fi
    build/oracle/bin/pip install --quiet --requirement tests/oracle/requirements.txt
    python=$PWD/build/oracle/bin/python
fi
runs=build/oracle-runs
mkdir -p $runs
trap 'echo "oracle.sh: interrupted; the same command goes on where this one was" >&2; exit 130' INT TERM

# few FEW FULL
few() { if [ $scope = few ]; then echo "$1"; else echo "$2"; fi; }

script() { "$python" "tests/oracle/$1.py" "${@:2}"; }

# drawn STEPS SEEDS MODELS FAMILY...
drawn() {
    # shellcheck disable=SC2086 # several steps and seeds
    script distribution --bin "$PWD/build/bin" --family "${@:4}" --steps $1 --seed $2 --models "$3"
}

# The package eps, for this Python alone.
own_loss() {
    "$python" -m pip install --quiet --upgrade --target $runs/package \
        --config-settings "cmake.define.EPS_BUILT=$PWD/build" ./client/python &&
        PYTHONPATH=$PWD/$runs/package script own_loss --models "$(few 1 3)"
}

# Called in a condition, so that no line ends it but by `|| return`.
run() {
    local seed decoders=(llama mistral qwen2 qwen3 gemma gemma3) encoders=(bert roberta)

    case $1 in
    check_types) script check_types "$PWD/build/bin" ;;
    check_coded | check_fp8 | check_saved | check_passed | check_nets | check_adapters) script "$1" --bin "$PWD/build/bin" ;;
    check_gguf) script check_gguf "$llama" --bin "$PWD/build/bin" ;;
    spelled_numbers) script spelled_numbers compare "$(few 10000 100000)" ;;
    side_tokens)
        for seed in $(few 1 "1 2 3 5"); do
            script side_tokens --draws "$(few 100 1000)" --seed "$seed" || return
        done ;;
    family_tokens) script family_tokens --texts "$(few 200 2000)" ;;
    templates)
        seed=$("$python" -c 'import pathlib, trl; print(pathlib.Path(trl.__file__).parent / "chat_templates")') || return
        script templates compare "$seed" && script templates draw "$(few 100 1000)" ;;
    named_templates) script named_templates "$(few 100 1000)" ;;
    conversations) script conversations compare "$(few 20 1000)" ;;
    draw_keys) script draw_keys "$(few 100 1000)" --bin "$PWD/build/bin" ;;
    draw_adapters) script draw_adapters "$(few 10 100)" --bin "$PWD/build/bin" ;;
    tokens_real) script tokens_real --mb "$(few 2 50)" ;;
    classify) script classify --bin "$PWD/build/bin" --seeds 3 --rows 480 ;;
    own_loss) own_loss ;;
    families) script families --defaults && script families --draws "$(few 2 40)" ;;
    family_steps) script family_steps --draws "$(few 1 6)" ;;
    distribution)
        if [ $scope = few ]; then
            drawn "1 20" 1 4 gpt2
        else
            drawn "1 20" 1 60 gpt2 && drawn 1 2 30 gpt2 && drawn 20 2 20 gpt2
        fi ;;
    decoders) drawn "1 10" "$(few 2 "2 3 4 5 6 7 8")" "$(few 1 3)" "${decoders[@]}" && drawn 0 2 "$(few 1 9)" "${decoders[@]}" ;;
    encoders) drawn "1 10" "$(few 2 "2 3 4 5 6 7 8")" "$(few 1 3)" "${encoders[@]}" && drawn 0 2 "$(few 1 9)" "${encoders[@]}" ;;
    *) script "$1" ;;
    esac
}

# Since it passed, neither the programs nor the scripts have changed.
is_passed() {
    local stamp=$runs/$1.$scope

    [ -e "$stamp" ] && [ -z "$(find -L build/bin/{eps,epsd,eps-worker} tests/oracle/*.py -newer "$stamp" -print -quit)" ]
}

passed=0 failed=0 skipped=0
for name in "${chosen[@]}"; do
    if [ "$name" = check_gguf ] && [ -z "$llama" ]; then
        echo "skipped: check_gguf, which needs --llama DIR"
        skipped=$((skipped + 1))
        continue
    fi
    if ! $again && is_passed "$name"; then
        echo "passed before: $name"
        passed=$((passed + 1))
        continue
    fi
    rm -f "$runs/$name.$scope"
    began=$SECONDS
    if run "$name" >"$runs/$name.log" 2>&1; then
        touch "$runs/$name.$scope"
        echo "passed: $name, in $((SECONDS - began)) s"
        passed=$((passed + 1))
    else
        echo "FAILED: $name, in $((SECONDS - began)) s; $runs/$name.log ends:"
        tail -n 5 "$runs/$name.log" | sed 's/^/    /'
        failed=$((failed + 1))
    fi
done
echo "$passed passed, $failed failed, $skipped skipped$(few ' (a few draws each; as many as tests/README.md states: --full)' '')"
[ $failed = 0 ]
