#!/usr/bin/env bash
# The installed tree, from outside: what is there, what libeps shows, and its examples built against it by pkg-config
# and run. The tree is moved once first: nothing in it may hold its prefix. Then the Debian package, in the same way.
#
# usage: tests/system/test_install.sh BUILD_DIRECTORY
set -euo pipefail

build=$(realpath "$1")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() {
    echo "test_install: $*" >&2
    exit 1
}

cmake --install "$build" --prefix "$work/first" >"$work/log" || fail "$(cat "$work/log")"
mv "$work/first" "$work/moved"
cd "$work/moved"
for file in bin/eps bin/epsd bin/eps-worker lib/libeps.so include/eps.h include/eps_data.h include/eps_options.h include/eps_plan.h include/eps_texts.h share/man/man1/eps.1 share/man/man1/epsd.1 \
    share/man/man1/eps-worker.1 share/man/man1/eps-train.1 share/man/man1/eps-stop.1 share/bash-completion/completions/eps \
    share/zsh/vendor-completions/_eps share/fish/vendor_completions.d/eps.fish share/doc/eps/README.md \
    share/doc/eps/copyright share/doc/eps/examples/example_train.c share/doc/eps/examples/example_widths.c lib/systemd/system/epsd.service \
    lib/systemd/system/eps-worker@.service lib/sysusers.d/eps.conf; do
    [ -s "$file" ] || fail "$file is missing"
done
for file in README.md copyright; do
    grep -q 'No licence has been chosen' share/doc/eps/$file || fail "$file says nothing of a licence"
done
for command in $(bin/eps --help | sed -nE 's/^  ([a-z]+) .*/\1/p'); do
    [ -s "share/man/man1/eps-$command.1" ] || fail "eps $command has no manual page"
done
for page in README.md client/README.md client/python/README.md eps/README.md proto/README.md proto/plan/README.md tools/bench/README.md \
    device/cuda/README.md tools/project/CHANGES.md tools/project/CONTRIBUTING.md tools/project/SECURITY.md; do
    for link in $(grep -o '](\S*)' "share/doc/eps/$page" | tr -d '])(' | sed 's/#.*//'); do
        [[ $link == https://* ]] || [ -s "share/doc/eps/$(dirname $page)/$link" ] || fail "share/doc/eps/$page links $link, which is not installed"
    done
done
for program in eps epsd eps-worker; do
    [ "$(bin/$program --version)" = "$program $(sed -n 's/^Version: //p' lib/pkgconfig/eps.pc)" ] ||
        fail "$program --version: $(bin/$program --version)"
done

if [ -e "$build/bin/eps-mpi.so" ]; then # it is found, and misses the launcher alone
    said=$(XDG_RUNTIME_DIR=$work bin/epsd --mpi --listen alone 2>&1 || true)
    grep -q 'no launcher started this process' <<<"$said" || fail "epsd --mpi: $said"
fi

# What systemd says of the units, where it is; they name our programs without a path.
if command -v systemd-analyze >/dev/null; then
    mkdir "$work/units"
    for unit in epsd.service eps-worker@.service; do
        sed "s|^ExecStart=|&$PWD/bin/|" lib/systemd/system/$unit >"$work/units/$unit"
        systemd-analyze security --offline=true --threshold=20 "$work/units/$unit" >"$work/log" 2>&1 ||
            fail "$unit is more exposed than 2.0: $(grep exposure "$work/log")"
    done
    said=$(systemd-analyze verify --man=no "$work"/units/epsd.service "$work"/units/eps-worker@cpu.service 2>&1) ||
        fail "systemd-analyze verify: $said"
    [ -z "$said" ] || fail "systemd-analyze verify: $said"
fi

grep -q 'SONAME.*\[libeps\.so\.0\]' <<<"$(readelf -d lib/libeps.so)" || fail "libeps.so has another SONAME"
seen=$(nm -D --defined-only lib/libeps.so | awk '{ print $3 }')
stray=$(grep -v '^eps_' <<<"$seen" || true)
[ -z "$stray" ] || fail "libeps.so shows more than client/eps.h:" $stray
for name in $(grep -oh '\beps_[a-z_]*(' include/eps*.h | tr -d '(' | sort -u); do
    grep -qx "$name" <<<"$seen" || fail "libeps.so does not show $name"
done

lost=$(tail -qn +2 include/eps*.h | grep -oE '\b(client|device|eps|proto|tools)/[a-z_/]+\.[a-z]+' || true)
[ -z "$lost" ] || fail "include/eps*.h refer to files that are not installed:" $lost

# As a user would, with a compiler and pkg-config; the programs are found beside the library, not beside the example.
export PKG_CONFIG_PATH=$work/moved/lib/pkgconfig LD_LIBRARY_PATH=$work/moved/lib XDG_RUNTIME_DIR=$work
cd "$work"
${CC:-cc} -Wall -Wextra -Werror moved/share/doc/eps/examples/example_train.c -o example $(pkg-config --cflags --libs eps)
cat >config.json <<'JSON'
{"model_type": "gpt2", "n_layer": 1, "n_head": 2, "n_embd": 16, "n_positions": 32, "vocab_size": 256,
 "attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0}
JSON
head -c 20000 moved/include/eps.h >book.txt
PATH=/usr/bin:/bin ./example config.json book.txt out 3 >said 2>&1 || fail "example_train: $(cat said)"
[ "$(grep -c '^step [123] of 3: loss ' said)" -eq 3 ] || fail "example_train printed: $(cat said)"
[ -s out/step-3/model.safetensors ] || fail "example_train left no out/step-3"
if ./example none.json book.txt none 3 >said 2>&1; then fail "example_train took a model that is not there"; fi
grep -q 'none.json.*No such file' said || fail "example_train did not say what was wrong: $(cat said)"

# Each loss that the other example prints, and the best one, are those of the metrics and of sort.
${CC:-cc} -Wall -Wextra -Werror moved/share/doc/eps/examples/example_widths.c -o widths $(pkg-config --cflags --libs eps)
PATH=/usr/bin:/bin ./widths book.txt searched 20 >said 2>&1 || fail "example_widths: $(cat said)"
grep -q "^width 64: held-out loss .* at step 20$" said || fail "example_widths printed: $(cat said)"
for width in 16 128 512; do
    [ -s searched/width-$width/step-40/model.safetensors ] || fail "example_widths left no searched/width-$width/step-40"
    [ "$(wc -l <searched/width-$width/metrics.jsonl)" -eq 20 ] || fail "example_widths began width $width anew"
    loss=$(tail -n 1 searched/width-$width/metrics.jsonl | sed -n 's/.*"eval_loss": *\([0-9.]*\).*/\1/p')
    printf '%.4f %s\n' "$loss" $width >>losses
    grep -qx "width $width: held-out loss $(printf '%.4f' "$loss")" said || fail "example_widths printed: $(cat said)"
done
best=$(sort -n losses | sed -n '1s/.* //p')
grep -qx "the best width is $best: searched/width-$best/latest" said || fail "example_widths chose: $(cat said)"
if ./widths none.txt none 3 >said 2>&1; then fail "example_widths took data that is not there"; fi
grep -q 'none.txt.*No such file' said || fail "example_widths did not say what was wrong: $(cat said)"

# The Debian package, unpacked and run from there.
cd "$build"
cpack -G DEB -B "$work/package" >"$work/log" 2>&1 || fail "cpack: $(tail -n 5 "$work/log")"
deb=$(echo "$work"/package/eps_*.deb)
depends=$(dpkg-deb -f "$deb" Depends)
for library in libc6 libhwloc15 libjansson4 libjpeg62-turbo libnanomsg5 libncursesw6 libpng16-16 libsodium23 libuv1 libzstd1 zlib1g; do
    [[ $depends == *$library* ]] || fail "the package does not depend on $library: $depends"
done
[[ $depends != *mpi* ]] || fail "the package depends on Open MPI: $depends"
dpkg-deb -x "$deb" "$work/root"
for file in share/man/man1/eps.1.gz share/man/man1/eps-train.1.gz share/doc/eps/changelog.gz; do
    [ -s "$work/root/usr/$file" ] || fail "the package has no $file"
done
if [ -e "$build/bin/eps-mpi.so" ]; then # in a package of its own
    said=$(XDG_RUNTIME_DIR=$work "$work/root/usr/bin/epsd" --mpi --listen alone 2>&1 || true)
    grep -q 'install the package eps-mpi' <<<"$said" || fail "epsd --mpi without eps-mpi: $said"
    deb=$(echo "$work"/package/eps-mpi_*.deb)
    depends=$(dpkg-deb -f "$deb" Depends)
    [[ $depends == *"eps (= "*libopenmpi* ]] || fail "eps-mpi depends on: $depends"
    dpkg-deb -x "$deb" "$work/root"
    [ -s "$work/root/usr/share/doc/eps-mpi/copyright" ] || fail "eps-mpi has no copyright file"
    said=$(XDG_RUNTIME_DIR=$work "$work/root/usr/bin/epsd" --mpi --listen alone 2>&1 || true)
    grep -q 'no launcher started this process' <<<"$said" || fail "epsd --mpi with eps-mpi: $said"
fi
cd "$work"
[ -s root/usr/share/doc/eps/copyright ] || fail "the package has no copyright file"
"$work/root/usr/bin/eps" train --model config.json --data book.txt --out packaged --steps 2 >said 2>&1 ||
    fail "the package's eps: $(cat said)"
[ -s packaged/latest/model.safetensors ] || fail "the package's eps left no model"
echo "test_install: all well"
