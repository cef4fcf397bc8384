/* A model's files: as strings of JSON; read, found, written again, and limits kept. */
#include "tests/kit/command.h"
#include "tests/kit/outputs.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include "proto/model/file/model_files.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
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
    ck_assert_int_eq(model_files_read(&files, "from", NULL), 0);
    ck_assert_int_eq(model_files_check(files, NULL), 0);
    int to = open("to", O_RDONLY | O_DIRECTORY);
    ck_assert_int_eq(model_files_write(files, to, NULL), 0);
    ck_assert_int_eq(model_files_read(&again, "to", NULL), 0);
    ck_assert_uint_eq(json_object_size(again), 4);
    ck_assert(json_equal(files, again));
    ck_assert_str_eq(json_string_value(json_object_get(again, "tokenizer.json")), text);
    expect("rm from/notes.txt; diff -r from to", 0);
    ck_assert_int_eq(model_files_write(files, to, NULL), -EEXIST); /* nothing is written over */
    close(to);
    json_decref(files);
    json_decref(again);
}

/* Of several templates: chat_template.jinja and the folder, with settings beside them or without; in between they are a
 * list, as a checkpoint has them, which is read like any. */
TEST_EACH(a_folder_of_templates_is_written_as_it_was, 2)
{
    static const char settings[] =
        "{\n  \"bos_token\": \"<s>\",\n  \"model_max_length\": 1000000000000000019884624838656\n}\n";
    char from[20], to[20];
    json_t *files, *again;

    strcpy(from, print("several-%d", _i)), strcpy(to, print("written-%d", _i));
    expect(print("mkdir -p %s/additional_chat_templates %s", from, to), 0);
    processes_put_text(print("%s/chat_template.jinja", from), "{{ 'd' }}\n");
    processes_put_text(print("%s/additional_chat_templates/tool_use.jinja", from), "t");
    processes_put_text(print("%s/additional_chat_templates/rag.jinja", from), "r\n");
    if (_i)
        processes_put_text(print("%s/tokenizer_config.json", from), settings);
    ck_assert_int_eq(model_files_read(&files, from, NULL), 0);
    ck_assert_int_eq(model_files_check(files, NULL), 0);
    ck_assert_uint_eq(json_object_size(files), 1);
    int fd = open(to, O_RDONLY | O_DIRECTORY);
    ck_assert_int_eq(model_files_write(files, fd, NULL), 0);
    expect(print("diff -r %s %s", from, to), 0);
    ck_assert_int_eq(model_files_read(&again, to, NULL), 0);
    ck_assert(json_equal(files, again));
    close(fd);
    json_decref(files);
    json_decref(again);
}

/* A stranger's list that names other places, or is somebody else's, stays a list. */
TEST(a_list_of_templates_goes_nowhere_else)
{
    static const char *const places[] = {"/tmp/x.jinja",
                                         "../x.jinja",
                                         "additional_chat_templates/../x.jinja",
                                         "additional_chat_templates/.x.jinja",
                                         "config.json",
                                         "additional_chat_templates/x"};

    for (int i = 0; i < COUNT(places); i++) {
        json_t *files = json_object();
        const char *config =
            print("{\"chat_template\": [{\"name\": \"default\", \"template\": \"d\", \"file\": "
                  "\"chat_template.jinja\"}, {\"name\": \"x\", \"template\": \"x\", \"file\": \"%s\"}]}",
                  places[i]);
        json_object_set_new(files, "tokenizer_config.json", json_string(config));
        expect("rm -rf strange && mkdir strange", 0);
        const int fd = open("strange", O_RDONLY | O_DIRECTORY);
        ck_assert_int_eq(model_files_write(files, fd, NULL), 0);
        char *written = processes_read("strange/tokenizer_config.json");
        ck_assert_str_eq(written, json_string_value(json_object_get(files, "tokenizer_config.json")));
        ck_assert_str_eq(outputs_names("strange"), "tokenizer_config.json ");
        free(written);
        close(fd);
        json_decref(files);
    }
}

/* As transformers writes int(1e30) into tokenizer_config.json for a tokenizer without a limit. */
TEST(settings_with_a_number_of_90_bits_are_read)
{
    json_t *files = json_pack("{s:s, s:s}", "tokenizer_config.json",
                              "{\"model_max_length\": 1000000000000000019884624838656, \"eos_token\": \"</s>\"}",
                              "generation_config.json", "{\"eos_token_id\": 2}");
    json_t *config = model_files_json(files, "tokenizer_config.json"),
           *generation = model_files_json(files, "generation_config.json");

    ck_assert_str_eq(json_string_value(model_files_token(config, "eos_token")), "</s>");
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

    ck_assert_uint_eq(MODEL_FILES_MAX_BYTES, 41943040);
    for (int i = 0; i < COUNT(wrongs); i++) {
        struct error err = {0};
        json_t *files = json_true();
        expect(wrongs[i].command, 0);
        ck_assert_int_eq(model_files_read(&files, "bad", &err), wrongs[i].code);
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
        ck_assert_msg(model_files_check(files, NULL) == -EINVAL, "%s", wrongs[i]);
        json_decref(files);
    }
    ck_assert_int_eq(model_files_check(NULL, NULL), -EINVAL);
}

/* The test vectors of RFC 4648, section 10; and by hand: 62, 63, 63, 63. */
static const struct {
    const char *bytes, *text;
} vectors[] = {{"", ""},
               {"f", "Zg=="},
               {"fo", "Zm8="},
               {"foo", "Zm9v"},
               {"foob", "Zm9vYg=="},
               {"fooba", "Zm9vYmE="},
               {"foobar", "Zm9vYmFy"},
               {"\xFB\xFF\xFF", "+///"}};

/* The string is this text, and stands for these bytes. */
static void check(const char *name, const char *bytes, size_t n, const char *text)
{
    json_t *string = model_files_encode(name, bytes, n);
    const char *back;
    char *made;
    size_t size;

    ck_assert_pstr_eq(json_string_value(string), text);
    ck_assert_int_eq(model_files_size(&size, name, string), 0);
    ck_assert_uint_eq(size, n);
    ck_assert_int_eq(model_files_decode(&back, &size, &made, name, string), 0);
    ck_assert_uint_eq(size, n);
    ck_assert_mem_eq(back, bytes, n);
    ck_assert(back == (made ? made : json_string_value(string)));
    free(made);
    json_decref(string);
}

TEST(a_text_is_its_own_string_and_tokenizer_model_is_base64)
{
    check("merges.txt", "a b\n", 4, "a b\n");
    for (int i = 0; i < COUNT(vectors); i++)
        check("tokenizer.model", vectors[i].bytes, strlen(vectors[i].bytes), vectors[i].text);
    check("tokenizer.model", "\0\0", 2, "AAA=");
}

TEST(every_byte_comes_back)
{
    static const char name[] = "tokenizer.model";
    char bytes[258];

    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (char)(i * 167);
    for (size_t n = sizeof bytes - 2; n <= sizeof bytes; n++) {
        json_t *string = model_files_encode(name, bytes, n);
        check(name, bytes, n, json_string_value(string));
        json_decref(string);
    }
}

TEST(what_is_no_text_and_what_is_no_base64_is_refused)
{
    static const char *const wrongs[] = {"A",    "AA",   "AAA",   "AAAAA", "====", "A===",     "AAA=AAAA",      "AA=A",
                                         "AA-_", "AA A", "AAA\n", "AB==",  "AAB=", "AAAA====", "AAAA\xC3\xA9=="};
    size_t n;

    ck_assert_ptr_null(model_files_encode("merges.txt", "a\0b", 3));
    ck_assert_ptr_null(model_files_encode("merges.txt", "\xFF", 1));
    ck_assert_int_eq(model_files_size(&n, "merges.txt", json_true()), -EINVAL);
    ck_assert_int_eq(model_files_size(&n, "merges.txt", NULL), -EINVAL);
    for (int i = 0; i < COUNT(wrongs); i++) {
        json_t *string = json_string(wrongs[i]);
        ck_assert_ptr_nonnull(string);
        ck_assert_msg(model_files_size(&n, "tokenizer.model", string) == -EINVAL, "%s", wrongs[i]);
        json_decref(string);
    }
}
