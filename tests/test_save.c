/* What a run leaves in its output directory, by real programs, and what it leaves when the directory is not as it
 * should be. What must not be there when a run begins is put there during its first step. */
#include "tests/processes.h"

#include "proto/safetensors.h"

#include <check.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

enum { FINAL_STEP = 2 };

/* As no program of ours would write it: what is saved is a copy, not a rewriting. */
static const char config[] = "\n{  \"model_type\":\"gpt2\",\t\"n_head\": 2, \"n_layer\": 1,\r\n"
                             "\"n_positions\": 32, \"n_embd\": 16, \"vocab_size\": 256,\n"
                             "\"embd_pdrop\": 0e0, \"attn_pdrop\": 0.000, \"resid_pdrop\": 0}\n\n ";
static char model[300], text[300];

static void setup(void)
{
    processes_setup();
    ck_assert_int_eq(chdir(processes_path(".")), 0);
    snprintf(model, sizeof model, "%s", processes_write("model.json", config, sizeof config - 1));
    snprintf(text, sizeof text, "%s", processes_text("text.txt", 8000));
}

static void remove_all(void)
{
    ck_assert_int_eq(chdir("/"), 0);
    processes_remove();
}

/* What happens in a run's first step. */
struct meanwhile {
    void (*act)(const char *out);
    const char *out;
};

static void on_step(void *user, const struct eps_step *step)
{
    const struct meanwhile *m = user;

    if (step->step == 1 && m->act)
        m->act(m->out);
}

/* A run into this directory; what eps_train returns. */
static int train(const char *out, const char *connect, void (*act)(const char *out), struct eps_error *error)
{
    const struct eps_train_events events = {.on_step = on_step};
    struct meanwhile meanwhile = {act, out};
    const char *files[] = {text};
    struct eps_train_options options = processes_options(model, files, out);

    options.steps = FINAL_STEP;
    options.batch = 4;
    options.seq = 32;
    options.connect = connect;
    if (!connect)
        options.device_mem = 256 << 20;
    return eps_train(&options, &events, &meanwhile, error);
}

static void write_at(const char *out, const char *name, const char *content)
{
    char path[300];

    snprintf(path, sizeof path, "%s/%s", out, name);
    FILE *file = fopen(path, "w");
    ck_assert_ptr_nonnull(file);
    fputs(content, file);
    ck_assert_int_eq(fclose(file), 0);
}

static void make_at(const char *out, const char *name)
{
    char path[300];

    snprintf(path, sizeof path, "%s/%s", out, name);
    ck_assert_int_eq(mkdir(path, 0700), 0);
}

/* The names in a directory, sorted, a space behind each. */
static const char *names_in(const char *path)
{
    static char names[500];
    struct dirent **entries;
    int n = scandir(path, &entries, NULL, alphasort);

    ck_assert_int_ge(n, 0);
    names[0] = '\0';
    for (int i = 0; i < n; i++) {
        if (entries[i]->d_name[0] != '.') {
            strncat(names, entries[i]->d_name, sizeof names - strlen(names) - 2);
            strcat(names, " ");
        }
        free(entries[i]);
    }
    free(entries);
    return names;
}

static void check_file(const char *out, const char *name, const char *content)
{
    char path[300];

    snprintf(path, sizeof path, "%s/%s", out, name);
    char *bytes = processes_read(path);
    ck_assert_str_eq(bytes, content);
    free(bytes);
}

/* A whole save: both files, readable, and latest. */
static void check_saved(const char *out)
{
    char path[300], target[64] = "";
    struct safetensors file;
    struct error err = {""};

    snprintf(path, sizeof path, "%s/step-2", out);
    ck_assert_str_eq(names_in(path), "config.json model.safetensors optimizer.safetensors training.json ");
    check_file(out, "step-2/config.json", config);
    snprintf(path, sizeof path, "%s/latest", out);
    ck_assert_int_eq(readlink(path, target, sizeof target - 1), 6);
    ck_assert_str_eq(target, "step-2");
    snprintf(path, sizeof path, "%s/latest/model.safetensors", out);
    int fd = open(path, O_RDONLY);
    ck_assert_int_ge(fd, 0);
    ck_assert_msg(safetensors_open(&file, fd, &err) == 0, "%s", err.text);
    ck_assert_uint_eq(file.n_entries, 2 + 12 + 2); /* wte, wpe; of the layer; ln_f */
    safetensors_close(&file);
    close(fd);
}

START_TEST(weights_stand_in_step_n_and_latest_points_there)
{
    struct eps_error error = {""};

    ck_assert_msg(train("plain", NULL, NULL, &error) == 0, "%s", error.text);
    check_saved("plain");
    ck_assert_str_eq(names_in("plain"), "latest log metrics.jsonl step-2 ");
}
END_TEST

static void leave_what_a_killed_run_leaves(const char *out)
{
    make_at(out, "step-2.partial");
    write_at(out, "step-2.partial/config.json", "{}");
    write_at(out, "step-2.partial/model.safetensors", "half");
    make_at(out, "step-1");
    ck_assert_int_eq(symlink("step-1", "killed/latest"), 0);
    ck_assert_int_eq(symlink("step-1", "killed/latest.partial"), 0);
}

START_TEST(what_a_killed_run_left_is_replaced)
{
    struct eps_error error = {""};

    ck_assert_msg(train("killed", NULL, leave_what_a_killed_run_leaves, &error) == 0, "%s", error.text);
    check_saved("killed");
    ck_assert_str_eq(names_in("killed"), "latest log metrics.jsonl step-1 step-2 ");
}
END_TEST

static void take_the_name(const char *out)
{
    make_at(out, "step-2");
    write_at(out, "step-2/precious", "mine");
}

START_TEST(weights_that_stand_there_already_are_left_alone)
{
    struct eps_error error = {""};

    ck_assert_int_eq(train("taken", NULL, take_the_name, &error), -EEXIST);
    ck_assert_ptr_nonnull(strstr(error.text, "step-2"));
    ck_assert_ptr_nonnull(strstr(error.text, "move it away"));
    ck_assert_str_eq(names_in("taken"), "log metrics.jsonl step-2 ");
    ck_assert_str_eq(names_in("taken/step-2"), "precious ");
    check_file("taken", "step-2/precious", "mine");
}
END_TEST

static void put_a_file_of_somebodys_into_partial(const char *out)
{
    make_at(out, "step-2.partial");
    write_at(out, "step-2.partial/precious", "mine");
}

START_TEST(a_partial_directory_with_more_in_it_is_not_ours_to_remove)
{
    struct eps_error error = {""};

    ck_assert_int_eq(train("foreign", NULL, put_a_file_of_somebodys_into_partial, &error), -EEXIST);
    ck_assert_ptr_nonnull(strstr(error.text, "step-2.partial"));
    ck_assert_str_eq(names_in("foreign"), "log metrics.jsonl step-2.partial ");
    check_file("foreign", "step-2.partial/precious", "mine");
}
END_TEST

/* Files of the daemon may grow to so many bytes; its shared memory has been made by then. */
static pid_t daemon_pid;

static void limit_files(rlim_t bytes)
{
    const struct rlimit limit = {.rlim_cur = bytes, .rlim_max = RLIM_INFINITY};

    ck_assert_int_eq(prlimit(daemon_pid, RLIMIT_FSIZE, &limit, NULL), 0);
}

static void leave_room_for_config(const char *out)
{
    (void)out;
    limit_files(4096);
}

static void leave_room_for_half_of_config(const char *out)
{
    (void)out;
    limit_files(100);
}

START_TEST(without_room_there_is_no_step_n_and_the_daemon_lives)
{
    static void (*const limits[])(const char *) = {leave_room_for_config, leave_room_for_half_of_config};
    static const char *const outs[] = {"full", "fuller"}, *const says[] = {"File too large", "model.safetensors"};
    struct eps_error error = {""};

    daemon_pid = processes_daemon("lab", 1, NULL);
    for (int i = 0; i < 2; i++) {
        const int rc = train(outs[i], "lab", limits[i], &error);
        ck_assert_msg(rc == -EFBIG || rc == -ENOSPC, "%d: %s", rc, error.text);
        ck_assert_msg(strstr(error.text, says[i]) != NULL, "%s", error.text);
        ck_assert_str_eq(names_in(outs[i]), "metrics.jsonl ");
        limit_files(RLIM_INFINITY);
    }
    ck_assert_msg(train("roomy", "lab", NULL, &error) == 0, "%s", error.text);
    check_saved("roomy");
    kill(daemon_pid, SIGTERM);
    ck_assert_int_eq(processes_wait(daemon_pid), 0);
}
END_TEST

/* The same through the command, where it has a disk of its own. */
START_TEST(the_command_says_so_and_exits_with_1_on_a_full_disk)
{
    char command[2000];

    snprintf(command, sizeof command,
             "mkdir disk && unshare -rm sh -c 'mount -t tmpfs -o size=24k none disk || exit 77\n"
             "%s/eps train --model %s --data %s --eval-data %s --out disk/run --batch 4 --steps 2 "
             "--device-mem 256MiB >/dev/null 2>said\n"
             "echo $? $(ls disk/run) >left'",
             BIN_DIR, model, text, text);
    if (system(command) != 0) { /* the daemon's part of it is tested above */
        fprintf(stderr, "test_save: not on a disk of its own: no user name spaces, or no mounts in them\n");
        return;
    }
    check_file(".", "left", "1 log metrics.jsonl\n");
    char *said = processes_read("said");
    ck_assert_msg(strncmp(said, "eps", 3) == 0 && strstr(said, "No space left on device"), "%s", said);
    ck_assert_ptr_eq(strchr(said, '\n'), said + strlen(said) - 1); /* one line */
    free(said);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("save");
    TCase *tests = tcase_create("save");

    tcase_add_unchecked_fixture(tests, setup, remove_all);
    tcase_set_timeout(tests, 60);
    tcase_add_test(tests, weights_stand_in_step_n_and_latest_points_there);
    tcase_add_test(tests, what_a_killed_run_left_is_replaced);
    tcase_add_test(tests, weights_that_stand_there_already_are_left_alone);
    tcase_add_test(tests, a_partial_directory_with_more_in_it_is_not_ours_to_remove);
    tcase_add_test(tests, without_room_there_is_no_step_n_and_the_daemon_lives);
    tcase_add_test(tests, the_command_says_so_and_exits_with_1_on_a_full_disk);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    const int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
