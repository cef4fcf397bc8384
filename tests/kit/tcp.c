#include "tests/kit/tcp.h"

#include <arpa/inet.h>
#include <check.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

void tcp_connect_pair(int ends[2])
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof at;
    const int listener = socket(AF_INET, SOCK_STREAM, 0);

    ck_assert_int_eq(bind(listener, (struct sockaddr *)&at, sizeof at), 0);
    ck_assert_int_eq(listen(listener, 1), 0);
    ck_assert_int_eq(getsockname(listener, (struct sockaddr *)&at, &size), 0);
    ends[0] = socket(AF_INET, SOCK_STREAM, 0);
    ck_assert_int_eq(connect(ends[0], (struct sockaddr *)&at, sizeof at), 0);
    ends[1] = accept(listener, NULL, NULL);
    ck_assert_int_ge(ends[1], 0);
    close(listener);
}
