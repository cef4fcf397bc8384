#include "proto/net/key.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

SUITE_FIXTURE(processes_setup, processes_remove)

#define DIGITS "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1eff"

TEST(a_key_is_made_once_and_read_as_its_line_says)
{
    const char *path = processes_path("key");
    uint8_t *key, *other;
    struct error err = {""};
    struct stat info;
    char line[90] = "eps-key-1 ";

    umask(0);
    ck_assert_msg(key_make(path, &err) == 0, "%s", err.text);
    ck_assert_int_eq(stat(path, &info), 0);
    ck_assert_uint_eq(info.st_mode & 07777, 0600);
    ck_assert_msg(key_read(&key, path, &err) == 0, "%s", err.text);
    for (int i = 0; i < KEY_BYTES; i++)
        snprintf(line + 10 + 2 * i, 3, "%02x", key[i]);
    char *text = processes_read(path);
    ck_assert_uint_eq(strlen(text), 75);
    ck_assert_int_eq(strncmp(text, line, 74), 0);
    free(text);
    ck_assert_int_eq(key_make(path, &err), -EEXIST);
    ck_assert_holds(err.text, path, "exists");
    ck_assert_int_eq(key_make(processes_path("other"), &err), 0);
    ck_assert_int_eq(key_read(&other, processes_path("other"), &err), 0);
    ck_assert(memcmp(key, other, KEY_BYTES) != 0);
    key_free(key);
    key_free(other);
}

TEST(the_last_digit_counts)
{
    const char *path = processes_put_text("key", "eps-key-1 " DIGITS "\n");
    uint8_t *key;
    struct error err = {""};

    chmod(path, 0600);
    ck_assert_msg(key_read(&key, path, &err) == 0, "%s", err.text);
    for (unsigned i = 0; i < 31; i++)
        ck_assert_uint_eq(key[i], i);
    ck_assert_uint_eq(key[31], 0xff);
    key_free(key);
}

static const struct {
    const char *text; /* NULL: no file */
    unsigned mode;
    int code;
    const char *says;
} wrong[] = {
    {NULL, 0, -ENOENT, "epsd --make-key"},
    {"eps-key-1 " DIGITS "\n", 0640, -EACCES, "mode 0640: others may have it; chmod 600"},
    {"eps-key-1 " DIGITS "\n", 0604, -EACCES, "mode 0604"},
    {"eps-key-1 " DIGITS, 0600, -EBADMSG, "has 74 bytes, a key file has 75"},
    {"eps-key-1 " DIGITS "\n\n", 0600, -EBADMSG, "has 76 bytes"},
    {"", 0600, -EBADMSG, "has 0 bytes"},
    {"eps-key-2 " DIGITS "\n", 0600, -EBADMSG, "is no key file"},
    {"eps-key-1 " DIGITS " ", 0600, -EBADMSG, "is no key file"},
    {"eps-key-1 g00102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1eff\n", 0600, -EBADMSG, "is no key file"},
};

TEST_EACH(another_file_is_refused_with_its_fault, COUNT(wrong))
{
    const char *path = processes_path("key");
    uint8_t *key;
    struct error err = {""};

    if (wrong[_i].text) {
        processes_put_text("key", wrong[_i].text);
        chmod(path, wrong[_i].mode);
    }
    ck_assert_int_eq(key_read(&key, path, &err), wrong[_i].code);
    ck_assert_ptr_null(key);
    ck_assert_holds(err.text, path, wrong[_i].says);
}

TEST(a_directory_is_no_key)
{
    uint8_t *key;
    struct error err = {""};

    ck_assert_int_eq(key_read(&key, processes_directory(), &err), -EBADMSG);
    ck_assert_holds(err.text, "not a regular file");
}
