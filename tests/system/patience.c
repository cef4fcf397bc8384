/* tests/system/patience.c - patience COMMAND [ARGUMENT...]: runs a command, and ends it if it hangs. Its status is the
 * command's; 124: it hung.
 *
 * A limit in seconds of the clock is a guess at how busy the machine is: a script that takes four minutes took more
 * than thirty beside a load of 28. So time is that of the processors, of the command and of all that it started, which
 * other programs' load does not lengthen. A command hangs if it uses none for IDLE_S, or more than COMPUTE_S in all.
 *
 * Processes that outlive their parents become this one's children (a subreaper's), so none leaves the count. */
#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { IDLE_S = 600, COMPUTE_S = 3600, MOST = 4096 /* processes of the machine that are looked at */ };

struct process {
    int pid, parent;
    double seconds; /* its own, and of its children that have ended */
    bool is_ours;
};

static bool process_read(struct process *out, int pid)
{
    unsigned long user, system, of_children[2];
    char path[32], text[1024];

    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE *file = fopen(path, "r");
    if (!file)
        return false;
    const size_t n = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[n] = 0;
    const char *rest = strrchr(text, ')'); /* behind a name that may hold anything */
    out->pid = pid;
    if (!rest || sscanf(rest + 1, " %*c %d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu %lu %lu", &out->parent, &user,
                        &system, &of_children[0], &of_children[1]) != 5)
        return false;
    out->seconds = (double)(user + system + of_children[0] + of_children[1]) / (double)sysconf(_SC_CLK_TCK);
    return true;
}

/* Processes below this one. Parents may come after their children, so it goes on until none is added. */
static size_t find_ours(struct process out[MOST])
{
    DIR *proc = opendir("/proc");
    size_t n = 0, n_ours = 0;

    for (struct dirent *entry; proc && n < MOST && (entry = readdir(proc));)
        n += atoi(entry->d_name) > 0 && process_read(&out[n], atoi(entry->d_name));
    if (proc)
        closedir(proc);
    for (size_t i = 0; i < n; i++)
        out[i].is_ours = false;
    for (bool added = true; added;) {
        added = false;
        for (size_t i = 0; i < n; i++) {
            bool below = out[i].parent == getpid();
            for (size_t j = 0; !below && j < n; j++)
                below = out[j].is_ours && out[j].pid == out[i].parent;
            added |= below && !out[i].is_ours;
            n_ours += below && !out[i].is_ours;
            out[i].is_ours = below;
        }
    }
    return n_ours > 0 ? n : 0;
}

/* Those that have ended among the command's descendants are counted by their parents, or here. */
static double seconds_used(void)
{
    static struct process all[MOST];
    const size_t n = find_ours(all);
    struct rusage ended;
    double sum;

    getrusage(RUSAGE_CHILDREN, &ended);
    sum = (double)(ended.ru_utime.tv_sec + ended.ru_stime.tv_sec) +
          (double)(ended.ru_utime.tv_usec + ended.ru_stime.tv_usec) / 1e6;
    for (size_t i = 0; i < n; i++)
        sum += all[i].is_ours ? all[i].seconds : 0;
    return sum;
}

static void kill_all(void)
{
    static struct process all[MOST];

    for (size_t n; (n = find_ours(all)) > 0;) {
        for (size_t i = 0; i < n; i++)
            if (all[i].is_ours)
                kill(all[i].pid, SIGKILL);
        while (waitpid(-1, NULL, WNOHANG) > 0)
            ;
    }
}

/* True once the command has ended. Others that ended are reaped. */
static bool has_ended(pid_t command, int *status)
{
    for (int one; (one = waitpid(-1, status, WNOHANG)) > 0;)
        if (one == command)
            return true;
    return false;
}

int main(int argc, char **argv)
{
    double last = 0;
    int status = 0, idle_s = 0;
    sigset_t ended, before;

    if (argc < 2) {
        fprintf(stderr, "usage: patience COMMAND [ARGUMENT...]\n");
        return 2;
    }
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    sigemptyset(&ended);
    sigaddset(&ended, SIGCHLD);
    sigprocmask(SIG_BLOCK, &ended, &before);
    const pid_t command = fork();
    if (command == 0) {
        sigprocmask(SIG_SETMASK, &before, NULL);
        execvp(argv[1], argv + 1);
        fprintf(stderr, "patience: %s: %s\n", argv[1], strerror(errno));
        _exit(127);
    }
    while (command > 0 && !has_ended(command, &status)) {
        if (sigtimedwait(&ended, NULL, &(struct timespec){1, 0}) > 0)
            continue;
        const double used = seconds_used();
        idle_s = used > last ? 0 : idle_s + 1;
        last = used > last ? used : last;
        if (idle_s >= IDLE_S || last >= COMPUTE_S) {
            fprintf(stderr, "patience: %s hangs: it computed %.0f s, and nothing in the last %d s\n", argv[1], last,
                    idle_s);
            kill_all();
            return 124;
        }
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
