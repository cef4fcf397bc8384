#!/usr/bin/env python3
"""plant.py - plants faults in daemon and worker, one at a time, and notes how many seeds of the world find each.

  plant.py --tree DIR [--seeds N] [--only ID,...] [-j N]
  plant.py --check

faults.json lists them: a file, a text that it has once, what takes its place, and whether it takes several hosts to find
it. DIR is a worktree of this repository's last commit with a build of its own, which is made where there is none. Each
fault is planted there, world is built, and seeds from 0 on run until one fails. --check only says whether each can be
planted. The exit status is 1 if one cannot, or if N seeds (2,000) did not find one.
"""
import argparse
import json
import os
import re
import signal
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.normpath(os.path.join(HERE, '../../..'))


def run(*command, **options):
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options)


def read(path):
    with open(path) as file:
        return file.read()


def build(tree, jobs):
    done = run('cmake', '--build', os.path.join(tree, 'build'), '--target', 'world', '-j', str(jobs))
    return None if done.returncode == 0 else done.stdout


def find(tree, n_seeds, options):
    """The number of seeds that it took, and what the last said; 0 if none found it. What follows, the search for the
    fewest faults of that seed, is not waited for."""
    world = subprocess.Popen([os.path.join(tree, 'build/bin/world'), '--seeds', f'0..{n_seeds}', *options], text=True,
                             stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True)
    first = world.stdout.readline().rstrip()
    os.killpg(world.pid, signal.SIGKILL)
    world.wait()
    seed = re.match(r'(before any fault, setting|seed) (\d+)', first)
    return (int(seed[2]) + 1, first) if seed else (0, '')


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--tree')
    parser.add_argument('--check', action='store_true')
    parser.add_argument('--seeds', type=int, default=2000)
    parser.add_argument('--only', default='')
    parser.add_argument('-j', type=int, default=2)
    options = parser.parse_args()
    only = [int(i) for i in options.only.split(',') if i]
    with open(os.path.join(HERE, 'faults.json')) as file:
        faults = json.load(file)
    lost = [fault for fault in faults if read(os.path.join(ROOT, fault['file'])).count(fault['old']) != 1]
    for fault in lost:
        print(f"fault {fault['id']}: {fault['file']} has not its text, or more than once", file=sys.stderr)
    if lost or options.check:
        return len(lost) > 0
    if not options.tree:
        parser.error('--tree is missing')
    here = run('git', '-C', ROOT, 'rev-parse', 'HEAD', check=True).stdout.strip()
    if not os.path.exists(options.tree):
        subprocess.run(['git', '-C', ROOT, 'worktree', 'add', '--detach', options.tree], check=True)
    subprocess.run(['git', '-C', options.tree, 'checkout', '-q', '--detach', here], check=True)
    if not os.path.exists(os.path.join(options.tree, 'build')):
        lists = os.path.join(options.tree, 'CMakeLists.txt')
        run('sed', '-i', 's/ -Werror$//', lists, check=True)  # a fault may leave a function unused
        run('cmake', '--preset', 'release', '-DEPS_CUDA=OFF', cwd=options.tree, check=True)
    missed = 0
    for fault in faults:
        if only and fault['id'] not in only:
            continue
        path = os.path.join(options.tree, fault['file'])
        text = read(path)
        try:
            with open(path, 'w') as file:
                file.write(text.replace(fault['old'], fault['new']))
            trouble = build(options.tree, options.j)
            if trouble:
                sys.exit(f"fault {fault['id']} does not compile:\n{trouble}")
            n, said = find(options.tree, options.seeds, ['--hosts'] if fault.get('hosts') else [])
        finally:
            with open(path, 'w') as file:
                file.write(text)
        missed += not n
        print(f"{fault['id']:3} {'found by seed ' + str(n - 1) if n else 'NOT FOUND':20} {fault['what']}\n"
              f"      {said}", flush=True)
    print(f'{missed} not found')
    return 1 if missed else 0


if __name__ == '__main__':
    sys.exit(main())
