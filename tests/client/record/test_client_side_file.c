#include "tests/kit/test.h"

#include "client/record/side_file.h"

#include <unistd.h>

TEST(the_side_file_holds_options_and_files)
{
    json_t *options = json_pack("{s:f}", "lr", 0.1), *texts = json_pack("{s:s}", "merges.txt", "a b\n");
    char bytes[400];

    for (int with = 0; with < 2; with++) {
        int fd;
        ck_assert_int_eq(client_side_file_create(&fd, options, with ? texts : NULL, with ? 4096 : 0, NULL), 0);
        const ssize_t n = read(fd, bytes, sizeof bytes); /* from its beginning */
        ck_assert_int_gt((int)n, 0);
        json_t *side = json_loadb(bytes, (size_t)n, 0, NULL);
        ck_assert_int_eq(json_equal(json_object_get(side, "options"), options), 1);
        ck_assert_uint_eq(json_object_size(json_object_get(side, "files")), (unsigned)with);
        json_decref(side);
        close(fd);
    }
    json_decref(options);
    json_decref(texts);
}
