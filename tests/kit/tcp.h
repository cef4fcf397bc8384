/* tests/kit/tcp.h - connections between two ends of one process. */
#ifndef TESTS_KIT_TCP_H
#define TESTS_KIT_TCP_H

/* Two ends of a tcp connection on loopback; the caller closes them. Asserts. */
void tcp_connect_pair(int ends[2]);

#endif
