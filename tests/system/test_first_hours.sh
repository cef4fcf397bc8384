#!/usr/bin/env bash
# Three first hours with eps, each from a small model that this script trains: 200 conversations, a text, preferences. No option
# says how to learn. What was held out must have become likelier, and each command that the last one names must run.
#
# usage: tests/system/test_first_hours.sh [BUILD]      [build]
set -euo pipefail
shopt -s inherit_errexit
build=$(realpath "${1-build}")
PATH=$build/bin:$PATH
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
export XDG_RUNTIME_DIR=$work XDG_CACHE_HOME=$work/cache
machine=(--device cpu --device-mem 256MiB)

fail() {
    echo "test_first_hours: $*" >&2
    exit 1
}

# draw SEED SCRIPT: awk that draws by pick(list), the same each time
draw() {
    awk -v seed="$1" '
        function pick(list, n, of) {
            n = split(list, of, "|")
            seed = (seed * 1103515245 + 12345) % 2147483648
            return of[int(seed / 65536) % n + 1]
        }
        function name() { return pick("Anna|Bert|Cleo|Dora|Emil|Fritz|Greta|Hugo|Ida|Jan") }
        function city() { return pick("Rome|Oslo|Bonn|Bern|Paris|Lima|Cairo|Delhi|Quito|Nice") }
        function thing() { return pick("a map|a book|two apples|a red coat|some bread|a lamp|a key|a blue cup|three pens|a small dog") }
        BEGIN { '"$2"' }'
}

# The base: a model of bytes, of prose that the three do not repeat.
draw 1 'for (i = 0; i < 4000; i++) print name() " " pick("lives in|was seen in|came to") " " city() " " pick("with|for|and has") " " thing() "."' >prose.txt
eps train --data prose.txt --model byte-small --steps 300 --eval-every 0 --out base "${machine[@]}" >base.log
cp -rL base/latest model
printf '%s' "{% for m in messages %}{{ '<' + m.role + '>' + m.content + '\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<assistant>' }}{% endif %}" \
    >model/chat_template.jinja

# learned RUN PART: the run's last held-out loss is at most that part of its first, and its output has no stumble
learned() {
    local first last
    first=$(grep -o '"eval_loss_before": [0-9.]*' "$1/metrics.jsonl" | head -n 1 | cut -d ' ' -f 2)
    last=$(grep -o '"eval_loss": [0-9.]*' "$1/metrics.jsonl" | tail -n 1 | cut -d ' ' -f 2)
    echo "$1: held-out loss $first before, $last after $(wc -l <"$1/metrics.jsonl") steps"
    awk -v first="$first" -v last="$last" -v part="$2" 'BEGIN { exit !(first > 0 && last <= part * first) }' || fail "$1 has not learned"
    [ -e "$1/best/model.safetensors" ] || fail "$1 has no best checkpoint"
    eps verify "$1" >/dev/null
}

# next_commands LOG: runs what the run's last lines propose, but for what waits for a person
next_commands() {
    local n=0 command
    while read -r command; do
        n=$((n + 1))
        case $command in
        *"eps chat"*) echo "What does Anna have?" | bash -c "$command" >said ;;
        *) bash -c "$command" >said ;;
        esac || fail "proposed, and fails: $command"
        [ -s said ] || fail "proposed, and says nothing: $command"
    done < <(sed -n 's/^\(next  *\|   *\)\(eps .*\)$/\2/p' "$1")
    [ $n -gt 0 ] || fail "$1 proposes nothing"
}

# ---- 200 conversations ----
draw 2 'for (i = 0; i < 200; i++) {
    n = name(); c = city(); t = thing(); where = pick("0|1")
    printf "{\"messages\": [{\"role\": \"user\", \"content\": \"%s of %s has %s. %s %s%s?\"}, {\"role\": \"assistant\", \"content\": \"%s %s %s.\"}]}\n",
        n, c, t, where ? "Where is" : "What does", n, where ? "" : " have", n, where ? "is in" : "has", where ? c : t }' >chat.jsonl
eps data --model model chat.jsonl >said
eps plan --model model --data chat.jsonl "${machine[@]}" >said
eps train --model model --data chat.jsonl --out chats "${machine[@]}" >chats.log
learned chats 0.7
next_commands chats.log
echo "Anna of Rome has a key. Where is Anna?" | eps chat --model chats/best --temperature 0 "${machine[@]}" >said 2>/dev/null
[ -s said ] || fail "the chat says nothing"

# ---- a text ----
draw 3 'for (i = 0; i < 600; i++) print thing() ", said " name() " of " city() ", is all I want."' >wishes.txt
eps train --model model --data wishes.txt --out wishes "${machine[@]}" >wishes.log
learned wishes 0.7
next_commands wishes.log

# ---- preferences ----
draw 4 'for (i = 0; i < 200; i++) { n = name(); c = city(); t = thing()
    printf "{\"prompt\": \"%s of %s\", \"chosen\": \" has %s.\", \"rejected\": \" has %s!\"}\n", n, c, t, t }' >preferences.jsonl
eps train --model model --data preferences.jsonl --out preferred "${machine[@]}" >preferred.log
learned preferred 0.9
next_commands preferred.log

# ---- and what everybody does next ----
eps export --model chats/best --out exported >said
[ -s exported/model.safetensors ] || fail "nothing was exported"
eps eval --model wishes/best --data wishes.txt "${machine[@]}" >said
eps train --resume wishes --steps 150 >said
echo "test_first_hours: all well"
