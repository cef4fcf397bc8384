/* A job's training text, as the client encodes it and the daemon decodes it. */
#include "tests/kit/test.h"

#include "proto/wire/training_text.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

TEST(what_the_client_encodes_the_daemon_decodes)
{
    json_t *options = json_pack("{s:f}", "lr", 0.1), *files = json_pack("{s:s}", "merges.txt", "a b\n");
    char bytes[4096];

    for (int with = 0; with < 2; with++) {
        json_t *parsed;
        int fd;
        ck_assert_int_eq(training_text_seal(&fd, options, with ? files : NULL, with ? sizeof bytes : 0, NULL), 0);
        const ssize_t n = read(fd, bytes, sizeof bytes); /* from its beginning */
        ck_assert_int_gt((int)n, 0);
        ck_assert(!with || n == sizeof bytes); /* padded */
        ck_assert_int_eq(training_text_parse(&parsed, bytes, (size_t)n, NULL), 0);
        ck_assert(json_equal(json_object_get(parsed, "options"), options));
        ck_assert_uint_eq(json_object_size(json_object_get(parsed, "files")), (unsigned)with);
        ck_assert(!with || json_equal(json_object_get(parsed, "files"), files));
        json_decref(parsed);
        close(fd);
    }
    json_decref(options);
    json_decref(files);
}

TEST(a_text_that_is_none_is_refused)
{
    static const char *const texts[] = {"",
                                        "[]",
                                        "{\"options\": 3}",
                                        "{\"options\": {}, \"files\": {\"a.json\": 1}}",
                                        "{\"options\": {}, \"files\": {\"../a.json\": \"\"}}",
                                        "{\"options\": {}, \"files\": {\"training.json\": \"\"}}",
                                        "{\"options\": {}, \"files\": {\"program\": \"\"}}",
                                        "{\"options\": {}, \"files\": {\"tokenizer.model\": \"AA\"}}"};
    struct error err = {""};
    json_t *parsed;

    for (int i = 0; i < COUNT(texts); i++) {
        ck_assert_int_eq(training_text_parse(&parsed, texts[i], strlen(texts[i]), &err), -EINVAL);
        ck_assert_ptr_null(parsed);
        ck_assert_msg(strstr(err.text, "the job's side file: ") == err.text, "%s", err.text);
    }
}
