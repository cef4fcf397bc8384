/* A model's side files: read, found, written again, and limits kept. */
#include "tests/kit/command.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include "client/text/side.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

SUITE_FIXTURE_ONCE(processes_setup, processes_remove)

TEST(what_was_read_is_written_as_it_was)
{
    static const char text[] = "{\"a\": \"\\u00e9\",\r\n \"b\": \"\xF0\x9F\x98\x80\"}\n";
    json_t *files, *again;

    ck_assert_int_eq(mkdir("from", 0700), 0);
    ck_assert_int_eq(mkdir("to", 0700), 0);
    processes_put_text("from/tokenizer.json", text);
    processes_put_text("from/added_tokens.json", "");
    processes_put_text("from/chat_template.jinja", "{% for m in messages %}\n");
    processes_put_text("from/notes.txt", "no");
    processes_write("from/tokenizer.model", "\0\n\xFF\0", 4);
    ck_assert_int_eq(client_side_read(&files, "from", NULL), 0);
    ck_assert_int_eq(client_side_check(files, NULL), 0);
    int to = open("to", O_RDONLY | O_DIRECTORY);
    ck_assert_int_eq(client_side_write(files, to, NULL), 0);
    ck_assert_int_eq(client_side_read(&again, "to", NULL), 0);
    ck_assert_uint_eq(json_object_size(again), 4);
    ck_assert(json_equal(files, again));
    ck_assert_str_eq(json_string_value(json_object_get(again, "tokenizer.json")), text);
    expect("rm from/notes.txt; diff -r from to", 0);
    ck_assert_int_eq(client_side_write(files, to, NULL), -EEXIST); /* nothing is written over */
    close(to);
    json_decref(files);
    json_decref(again);
}

/* As transformers writes int(1e30) into tokenizer_config.json for a tokenizer without a limit. */
TEST(settings_with_a_number_of_90_bits_are_read)
{
    json_t *files = json_pack("{s:s, s:s}", "tokenizer_config.json",
                              "{\"model_max_length\": 1000000000000000019884624838656, \"eos_token\": \"</s>\"}",
                              "generation_config.json", "{\"eos_token_id\": 2}");
    json_t *config = client_side_json(files, "tokenizer_config.json"),
           *generation = client_side_json(files, "generation_config.json");

    ck_assert_str_eq(json_string_value(client_side_token(config, "eos_token")), "</s>");
    ck_assert(json_is_integer(json_object_get(generation, "eos_token_id")));
    json_decref(files);
    json_decref(config);
    json_decref(generation);
}

TEST(what_cannot_be_kept_is_refused_by_name)
{
    static const struct {
        const char *command; /* of the shell, before */
        int code;
        const char *sentence;
    } wrongs[] = {
        {"mkdir bad; printf '\\377' >bad/merges.txt", -EINVAL, "bad/merges.txt: not UTF-8"},
        {"printf 'a\\0' >bad/merges.txt", -EINVAL, "bad/merges.txt: not UTF-8"},
        {"echo version https://git-lfs.github.com/spec/v1 >bad/merges.txt", -EINVAL,
         "bad/merges.txt: not the file but Git LFS's pointer to it: run git lfs pull"},
        {"truncate -s 41943041 bad/merges.txt", -EFBIG, "bad/merges.txt"},
        {"rm bad/merges.txt; mkdir bad/vocab.json", -EINVAL, "bad/vocab.json: not a regular file"},
        {"rmdir bad/vocab.json; mkfifo bad/vocab.json", -EINVAL, "bad/vocab.json: not a regular file"},
        {"rm -r bad", -ENOENT, "bad: No such file"},
    };

    ck_assert_uint_eq(CLIENT_SIDE_MAX_BYTES, 41943040);
    for (int i = 0; i < COUNT(wrongs); i++) {
        struct error err = {0};
        json_t *files = json_true();
        expect(wrongs[i].command, 0);
        ck_assert_int_eq(client_side_read(&files, "bad", &err), wrongs[i].code);
        ck_assert_holds(err.text, wrongs[i].sentence);
        ck_assert_ptr_null(files);
    }
}

TEST(a_stranger_s_object_is_checked)
{
    static const char *const wrongs[] = {"[]", "{\"../merges.txt\": \"\"}", "{\"config.json\": \"\"}",
                                         "{\"merges.txt\": 1}", "{\"tokenizer.model\": \"AA\"}"};

    for (size_t i = 0; i < sizeof wrongs / sizeof *wrongs; i++) {
        json_t *files = json_loads(wrongs[i], 0, NULL);
        ck_assert_msg(client_side_check(files, NULL) == -EINVAL, "%s", wrongs[i]);
        json_decref(files);
    }
    ck_assert_int_eq(client_side_check(NULL, NULL), -EINVAL);
}
