#!/usr/bin/env bash
# How many files ask what a row is: which task it is of, where its tokens come from, which of them are learned, what stands beside
# them. A task should stand in one file; each of these has to be read, and maybe changed, for one that is added.
#
# usage: tools/row_files.sh [--list | --by-name]     --list: the files, each with how often it asks; --by-name: the names, each
#                                                    with how many files have it
#
# A name below that no file has fails the count: a rename is no division of labour, so what took its place is listed
# instead. What gets a name of its own for the same question is added. Words that mean other things elsewhere (masked,
# weighted, smoothing) are left out.
set -euo pipefail
cd "$(dirname "$0")/.."

names=(
    # kinds of rows in the client, as code that reads, orders, fills or scores them knows them
    client_source client_source_ops client_source_setup client_source_facts client_source_rules
    client_windows client_windowed client_corpus client_listed client_documents_rules client_document_inputs
    client_packed client_packing client_labelled_rules client_example client_pairs client_batches
    client_masks client_spans client_labels client_columns client_learn client_scores
    client_images client_predict
    # options that only some tasks have
    mask_fraction dpo_beta dpo_smoothing train_on label_smoothing source_seq split_special_tokens n_labels
    # what the plan, the step and the daemon ask of a job's rows
    plan_has_pairs plan_field plan_data_has plan_row packs row_tokens
    # what a model's family says of its rows
    model_has_source model_has_segments model_has_lengths
)
mode=${1---count}
case $mode in
--help | -h) sed -n '2,10s/^# \{0,1\}//p' "$0"; exit ;;
--count | --list | --by-name) ;;
*) echo "row_files.sh: $mode: try --help" >&2; exit 2 ;;
esac

files() { find client proto eps device tools -name '*.[ch]'; }
any=$(IFS='|'; echo "${names[*]}")
failed=0
for name in "${names[@]}"; do
    n=$(files | { xargs grep -lw "$name" || true; } | wc -l)
    if [ "$n" -eq 0 ]; then
        echo "row_files.sh: no file has $name: list what took its place" >&2
        failed=1
    fi
    [ "$mode" != --by-name ] || printf '%4d %s\n' "$n" "$name"
done
[ $failed -eq 0 ] || exit 1
case $mode in
--list) files | { xargs grep -cwE "$any" || true; } | awk -F: '$2 > 0 { printf "%4d %s\n", $2, $1 }' | sort -rn ;;
--count) echo "$(files | xargs grep -lwE "$any" | wc -l) of $(files | wc -l) files ask what a row is" ;;
esac
