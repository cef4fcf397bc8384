/* Models by their name on the Hugging Face hub: when hf is run, with what, and what is made of what it says. A script
 * stands in for hf: it writes its arguments to the file args, "downloads" the directory `model` into the hub's cache,
 * and prints the file `said`, in which PATH is where that is. */
#include "tests/kit/command.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TIED     TESTS_DIR "/fixtures/tied"
#define COMMIT   "0123456789abcdef0123456789abcdef01234567"
#define PLACE    "home/hub/models--org--name"
#define SNAPSHOT PLACE "/snapshots/" COMMIT
#define EXPORT   "rm -rf copy args; eps export --model org/name --out copy "

static const char script[] = "#!/bin/sh\n"
                             "printf '%s\\n' \"$@\" >args\n"
                             "to=$HF_HOME/hub/models--org--name\n"
                             "mkdir -p $to/refs $to/snapshots\n"
                             "printf " COMMIT " >$to/refs/main\n"
                             "cp -rL model $to/snapshots/" COMMIT "\n"
                             "sed \"s|PATH|$to/snapshots/" COMMIT "|\" said\n";

static void setup(void)
{
    processes_setup();
    setenv("HF_HOME", processes_path("home"), 1);
    unsetenv("HF_HUB_CACHE");
    unsetenv("HUGGINGFACE_HUB_CACHE");
    setenv("PATH", print("%s:%s", processes_path("tools"), getenv("PATH")), 1);
    expect("mkdir tools", 0);
}

/* As if nothing had been downloaded, with an hf that does it. */
static void begin(void)
{
    expect("rm -rf home model args; cp -rL " TIED " model; chmod -R u+w model", 0);
    processes_put_text("said", "PATH\n");
    processes_put_text("tools/hf", script);
    expect("chmod +x tools/hf", 0);
}

SUITE_FIXTURE(setup, processes_remove)

#define WITHOUT_WEIGHTS                                                                                                \
    "download\norg/name\n--include\n*.json\n--include\n*.txt\n--include\n*.jinja\n--include\ntokenizer.model\n"
#define WEIGHTS "--include\nmodel*.safetensors\n--include\nadapter_model.safetensors\n"

static void expect_args(const char *expected)
{
    char *args = processes_read(processes_path("args"));

    ck_assert_str_eq(args, expected);
    free(args);
}

static bool was_run(void)
{
    return access(processes_path("args"), F_OK) == 0;
}

/* huggingface_hub 0.34 to 1.10; 1.11 on a terminal, with and without colours; 1.11 for programs. */
TEST(yes_downloads_config_tokenizer_and_safetensors_and_takes_the_directory_that_hf_names)
{
    static const char *const said[] = {"PATH\n",
                                       "Fetching\n\nPATH\n\n",
                                       "\033[32m✓ Downloaded\033[0m\n  path: PATH\n",
                                       "✓ Downloaded\n  \033[1mpath: PATH\033[0m\n",
                                       "path=PATH\n",
                                       "PATH"};

    for (int i = 0; i < COUNT(said); i++) {
        begin();
        processes_put_text("said", said[i]);
        expect(EXPORT "--yes", 0, "copy holds the model");
        ck_assert_holds(command_err(), "eps export: --model org/name is not here. Into ",
                        "/home/hub/models--org--name:", "hf download org/name --include '*.json'",
                        "eps export: --model org/name is in ");
        expect_args(WITHOUT_WEIGHTS WEIGHTS);
        expect("test -s copy/model.safetensors", 0);
    }
}

TEST(a_model_in_the_cache_is_found_without_hf)
{
    begin();
    expect(EXPORT "--yes", 0);
    expect(EXPORT, 0, "copy holds the model");
    ck_assert(!was_run());
    expect("rm tools/hf", 0);
    expect(EXPORT, 0, "copy holds the model");
    /* huggingface_hub's other names of the place. */
    expect(print("export HF_HUB_CACHE=$HF_HOME/hub; unset HF_HOME; %s", EXPORT), 0);
    expect(
        print("export XDG_CACHE_HOME=xdg; mkdir -p xdg/huggingface; cp -r home/hub xdg/huggingface; unset HF_HOME; %s",
              EXPORT),
        0);
    expect(print("export HOME=h; mkdir -p h/.cache/huggingface; cp -r home/hub h/.cache/huggingface; "
                 "unset HF_HOME XDG_CACHE_HOME; %s",
                 EXPORT),
           0);
}

/* A download that was interrupted; a snapshot of the config alone; a commit that is none. */
TEST(what_is_not_whole_is_downloaded_again)
{
    static const char *const changes[] = {
        "rm " SNAPSHOT "/model.safetensors",
        "echo '{\"weight_map\": {\"a\": \"model.safetensors\", \"b\": \"gone\"}}' >" SNAPSHOT
        "/model.safetensors.index.json",
        "rm " SNAPSHOT "/config.json",
        "printf '../../..' >" PLACE "/refs/main",
        "rm " PLACE "/refs/main",
    };

    for (int i = 0; i < COUNT(changes); i++) {
        begin();
        expect(EXPORT "--yes", 0);
        expect(changes[i], 0);
        expect_refusal(&(struct refusal){EXPORT, 2, "--model org/name is not here: --yes downloads it", "eps pull"});
    }
}

TEST(without_a_terminal_nothing_is_downloaded_unless_yes_says_so)
{
    static const char *const commands[] = {"eps train --model org/name --data text --out run",
                                           "eps eval --model org/name --data text",
                                           "eps generate --model org/name --prompt a",
                                           "eps chat --model org/name",
                                           "eps data text --model org/name",
                                           "eps plan --model org/name",
                                           "eps export --model org/name --out copy"};

    begin();
    for (int i = 0; i < COUNT(commands); i++) {
        expect_refusal(&(struct refusal){commands[i], 2, "--model org/name is not here: --yes downloads it into ",
                                         "by: hf download org/name --include '*.json'"});
        ck_assert(!was_run());
    }
}

TEST(on_a_terminal_the_user_is_asked)
{
    begin();
    ck_assert_holds(expect_typed(EXPORT, 1, 80, "n\n"), "is not here. Into ", "Download it? [y/N] ",
                    "is not downloaded");
    ck_assert(!was_run());
    expect_typed(EXPORT, 1, 80, "\n");
    ck_assert(!was_run());
    ck_assert_holds(expect_typed(EXPORT, 0, 80, "y\n"), "Download it? [y/N] ", "copy holds the model");
    expect_args(WITHOUT_WEIGHTS WEIGHTS);
    begin();
    ck_assert(!strstr(expect_on_terminal(EXPORT "--yes", 0, 80), "Download it?"));
}

/* And what they need not is fetched when it is needed. */
TEST(plan_and_data_need_no_weights)
{
    begin();
    expect("eps plan --model org/name --batch 2 --seq 16 --yes", 0, "fits        yes");
    expect_args(WITHOUT_WEIGHTS);
    expect("rm args " SNAPSHOT "/model.safetensors", 0);
    expect("eps plan --model org/name --batch 2 --seq 16", 0, "fits        yes");
    ck_assert(!was_run());
    expect_refusal(&(struct refusal){EXPORT, 2, "--model org/name is not here", NULL});
}

/* The numbers of a published model are known. */
TEST(a_published_model_is_planned_without_a_download)
{
    begin();
    expect("eps plan --model Qwen/Qwen3-0.6B --batch 1 --seq 16 --host-mem 1TiB --device-mem 1TiB", 0,
           "fits        yes");
    ck_assert(!was_run());
}

TEST(what_goes_wrong_with_hf_is_said)
{
    static const struct {
        const char *script;
        int status;
        const char *says;
    } cases[] = {
        {"echo 403 >&2; exit 3", 1,
         "hf download org/name failed with exit status 3; if the model asks for its licence to be accepted, do so at "
         "https://huggingface.co/org/name, then: hf auth login"},
        {"kill -9 $$", 128 + 9, "hf download org/name was ended by signal 9; the same command goes on with it"},
        {"true", 1, "hf download org/name ended well, but named no directory: ''"},
        {"echo path=/nowhere/at/all", 1, "named no directory: '/nowhere/at/all'"},
        {"mkdir -p bare; echo bare", 1, "gave no config.json in bare"},
        {"mkdir -p bare; cp model/config.json bare; echo bare", 1, "gave no *.safetensors in bare"},
    };

    begin();
    for (int i = 0; i < COUNT(cases); i++) {
        processes_put_text("tools/hf", print("#!/bin/sh\n%s\n", cases[i].script));
        expect(EXPORT "--yes", cases[i].status, cases[i].says);
        expect("eps pull org/name", cases[i].status, cases[i].says);
    }
    ck_assert_int_ne(access(processes_path("copy"), F_OK), 0);
}

/* libeps's own sentence; a path that could be here is no name of the hub. */
TEST(without_hf_or_a_name_of_the_hub_a_model_is_a_path)
{
    begin();
    expect_refusal(&(struct refusal){"mkdir org; eps export --model org/name --out copy --yes", 1, "--model org/name",
                                     "No such file"});
    expect_refusal(&(struct refusal){"rmdir org; eps export --model org/na/me --out copy --yes", 1, "--model org/na/me",
                                     "No such file"});
    ck_assert(!was_run());
    expect("rm tools/hf", 0);
    expect_refusal(&(struct refusal){"PATH=" BIN_DIR "; eps export --model org/name --out copy --yes", 1,
                                     "--model org/name: no such directory", "hf download org/name"});
    expect_refusal(
        &(struct refusal){"PATH=" BIN_DIR "; eps pull org/name", 1, "hf did not start", "pip install huggingface_hub"});
}

TEST(pull_downloads_whatever_is_there_and_prints_the_directory)
{
    for (int i = 0; i < 2; i++) {
        if (i == 0)
            begin();
        expect("rm -f args; eps pull org/name", 0);
        ck_assert_str_eq(command_out(), print("%s\n", processes_path(SNAPSHOT)));
        expect_args(WITHOUT_WEIGHTS WEIGHTS);
        expect("rm -r " SNAPSHOT, 0);
    }
}

#define TEN "aaaaaaaaaa"

/* No shell, and no option of hf's. */
TEST(what_is_no_name_of_the_hub_does_not_reach_hf)
{
    static const char *const names[] = {"name",          "org/",     "/name",
                                        "org/na/me",     "a/b/",     "org/-name",
                                        "../name",       "org/..",   "org/a..b",
                                        "o--g/name",     "org/n;id", "org/$(id)",
                                        "org/n`id`",     "org/a b",  "org/name.",
                                        "org/n\xc3\xa9", "~/name",   "org/" TEN TEN TEN TEN TEN TEN TEN TEN TEN "aaa"};

    begin();
    for (int i = 0; i < COUNT(names); i++) {
        expect_refusal(&(struct refusal){print("eps pull '%s'", names[i]), 2, "is not a name on the Hugging Face hub",
                                         "ORG/NAME"});
        ck_assert_msg(!was_run(), "%s", names[i]);
    }
    expect_refusal(&(struct refusal){"eps pull -o/name", 2, "-o/name is not an option", NULL});
    expect_refusal(&(struct refusal){"eps export --model -o/name --out copy --yes", 1, "-o/name", "No such file"});
    expect_refusal(&(struct refusal){"eps pull", 2, "ORG/NAME is missing", NULL});
    ck_assert(!was_run());
}
