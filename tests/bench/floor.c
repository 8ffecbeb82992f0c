/* The kernel's own price, without anybody's ideas about networks.
 *
 * As a CNI plugin (CNI_COMMAND is set):
 *   ADD      a veth created in place, one end up on the bridge "floor0", the other in CNI_NETNS
 *            with an address, up, and a default route; with "DUAL=1" in CNI_ARGS for IPv6 too
 *   DEL      deletes the link on the host
 *   others   nothing: the price of starting a static program
 * The number at the end of CNI_CONTAINERID makes the address: pod7 -> 10.88.0.9, fd88::9.
 *
 * As a program:
 *   floor routes COUNT DEVICE [IPv4|IPv6]
 *            adds COUNT routes over DEVICE, each with a gateway of its own, one message and one
 *            acknowledgement at a time; prints the seconds that took
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/rtnetlink.h>
#include <linux/veth.h>
#include <net/if.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

/* One or more requests, built from front to back. */
struct batch {
    _Alignas(4) char bytes[4096];
    size_t length;
    struct nlmsghdr *last;
    int requests;
};

static void fail(const char *what)
{
    printf("{\"cniVersion\":\"1.0.0\",\"code\":100,\"msg\":\"%s: %m\"}\n", what);
    exit(1);
}

static void *append(struct batch *batch, const void *from, size_t length)
{
    void *place = batch->bytes + batch->length;
    if (from)
        memcpy(place, from, length);
    batch->length += NLMSG_ALIGN(length);
    if (batch->last)
        batch->last->nlmsg_len = batch->bytes + batch->length - (char *)batch->last;
    return place;
}

static void request(struct batch *batch, int type, int flags, const void *header, size_t length)
{
    struct nlmsghdr message = {.nlmsg_type = type, .nlmsg_flags = NLM_F_REQUEST | NLM_F_ACK | flags};
    batch->last = NULL;
    batch->last = append(batch, &message, sizeof message);
    batch->requests++;
    append(batch, header, length);
}

static struct rtattr *attribute(struct batch *batch, int type, const void *value, size_t length)
{
    struct rtattr header = {.rta_type = type, .rta_len = RTA_LENGTH(length)};
    struct rtattr *place = append(batch, &header, sizeof header);
    if (length)
        append(batch, value, length);
    return place;
}

static void text(struct batch *batch, int type, const char *value)
{
    attribute(batch, type, value, strlen(value) + 1);
}

static void close_nest(struct batch *batch, struct rtattr *nest)
{
    nest->rta_len = batch->bytes + batch->length - (char *)nest;
}

static int open_socket(void)
{
    struct sockaddr_nl kernel = {.nl_family = AF_NETLINK};
    int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE);
    if (fd < 0 || connect(fd, (struct sockaddr *)&kernel, sizeof kernel))
        fail("open a netlink socket");
    return fd;
}

/* Sends everything at once and reads an acknowledgement for each request. */
static void transact(int fd, const struct batch *batch, const char *what)
{
    char answer[16384];
    if (send(fd, batch->bytes, batch->length, 0) < 0)
        fail(what);
    for (int left = batch->requests; left > 0;) {
        ssize_t length = recv(fd, answer, sizeof answer, 0);
        if (length < 0)
            fail(what);
        struct nlmsghdr *message = (struct nlmsghdr *)answer;
        for (; NLMSG_OK(message, length); message = NLMSG_NEXT(message, length)) {
            if (message->nlmsg_type != NLMSG_ERROR)
                continue;
            errno = -((struct nlmsgerr *)NLMSG_DATA(message))->error;
            if (errno)
                fail(what);
            left--;
        }
    }
}

static void create_veth(int fd, const char *host, const char *pod, int netns)
{
    /* The peer cannot be up in here: the two ends are not yet tied together. */
    struct ifinfomsg up = {.ifi_flags = IFF_UP, .ifi_change = IFF_UP}, peer_header = {0};
    struct batch batch = {0};
    uint32_t bridge = if_nametoindex("floor0");
    request(&batch, RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL, &up, sizeof up);
    text(&batch, IFLA_IFNAME, host);
    attribute(&batch, IFLA_MASTER, &bridge, sizeof bridge);
    struct rtattr *info = attribute(&batch, IFLA_LINKINFO, NULL, 0);
    text(&batch, IFLA_INFO_KIND, "veth");
    struct rtattr *data = attribute(&batch, IFLA_INFO_DATA, NULL, 0);
    struct rtattr *peer = attribute(&batch, VETH_INFO_PEER, NULL, 0);
    append(&batch, &peer_header, sizeof peer_header);
    text(&batch, IFLA_IFNAME, pod);
    attribute(&batch, IFLA_NET_NS_FD, &netns, sizeof netns);
    close_nest(&batch, peer);
    close_nest(&batch, data);
    close_nest(&batch, info);
    transact(fd, &batch, "create veth");
}

static void add_address(struct batch *batch, int family, int index, const char *address, int bits)
{
    struct ifaddrmsg header = {.ifa_family = family, .ifa_prefixlen = bits, .ifa_index = index};
    uint8_t bytes[16];
    header.ifa_flags = family == AF_INET6 ? IFA_F_NODAD : 0;
    inet_pton(family, address, bytes);
    request(batch, RTM_NEWADDR, NLM_F_CREATE | NLM_F_EXCL, &header, sizeof header);
    attribute(batch, IFA_LOCAL, bytes, family == AF_INET ? 4 : 16);
}

/* `bits` 0: the default route. */
static void add_route(struct batch *batch, int family, uint32_t device, const void *gateway,
                      const void *destination, int bits)
{
    struct rtmsg header = {.rtm_family = family,
                           .rtm_dst_len = bits,
                           .rtm_table = RT_TABLE_MAIN,
                           .rtm_protocol = RTPROT_BOOT,
                           .rtm_type = RTN_UNICAST};
    size_t length = family == AF_INET ? 4 : 16;
    request(batch, RTM_NEWROUTE, NLM_F_CREATE | NLM_F_EXCL, &header, sizeof header);
    if (bits)
        attribute(batch, RTA_DST, destination, length);
    attribute(batch, RTA_GATEWAY, gateway, length);
    attribute(batch, RTA_OIF, &device, sizeof device);
}

static void configure_pod(const char *interface, int number, int dual)
{
    int fd = open_socket(), index = if_nametoindex(interface);
    struct ifinfomsg up = {.ifi_index = index, .ifi_flags = IFF_UP, .ifi_change = IFF_UP};
    struct batch batch = {0};
    char address[64];
    uint8_t gateway[16];
    int host = number + 2;
    snprintf(address, sizeof address, "10.88.%d.%d", host / 256 % 256, host % 256);
    add_address(&batch, AF_INET, index, address, 16);
    if (dual) {
        snprintf(address, sizeof address, "fd88::%x", host);
        add_address(&batch, AF_INET6, index, address, 64);
    }
    request(&batch, RTM_NEWLINK, 0, &up, sizeof up);
    inet_pton(AF_INET, "10.88.0.1", gateway);
    add_route(&batch, AF_INET, index, gateway, NULL, 0);
    if (dual) {
        inet_pton(AF_INET6, "fd88::1", gateway);
        add_route(&batch, AF_INET6, index, gateway, NULL, 0);
    }
    transact(fd, &batch, "configure the pod's end");
}

static void delete_link(int fd, const char *name)
{
    struct ifinfomsg header = {0};
    struct batch batch = {0};
    request(&batch, RTM_DELLINK, 0, &header, sizeof header);
    text(&batch, IFLA_IFNAME, name);
    transact(fd, &batch, "delete veth");
}

static const char *variable(const char *name)
{
    const char *value = getenv(name);
    return value ? value : "";
}

static int plugin(const char *verb)
{
    char config[65536];
    while (read(0, config, sizeof config) > 0)
        continue;
    const char *id = variable("CNI_CONTAINERID"), *digits = id + strlen(id);
    while (digits > id && digits[-1] >= '0' && digits[-1] <= '9')
        digits--;
    char host[IFNAMSIZ];
    snprintf(host, sizeof host, "f%.12s", digits);
    if (!strcmp(verb, "ADD")) {
        int netns = open(variable("CNI_NETNS"), O_RDONLY | O_CLOEXEC);
        create_veth(open_socket(), host, variable("CNI_IFNAME"), netns);
        if (setns(netns, CLONE_NEWNET))
            fail("enter the pod");
        configure_pod(variable("CNI_IFNAME"), atoi(digits), !!strstr(variable("CNI_ARGS"), "DUAL=1"));
        printf("{\"cniVersion\":\"1.0.0\"}\n");
    } else if (!strcmp(verb, "DEL")) {
        delete_link(open_socket(), host);
    } else if (!strcmp(verb, "VERSION")) {
        printf("{\"cniVersion\":\"1.0.0\",\"supportedVersions\":[\"1.0.0\"]}\n");
    }
    return 0;
}

/* 11.X.Y.0/24 via 10.99.X.Y, fd11:0:0:XXYY::/64 via fd99::XXYY. */
static int routes(int count, const char *device, int family)
{
    int fd = open_socket();
    uint32_t index = if_nametoindex(device);
    struct timespec start, end;
    clock_gettime(CLOCK_MONOTONIC, &start);
    for (int number = 1; number <= count; number++) {
        struct batch batch = {0};
        uint8_t x = number >> 8, y = number;
        uint8_t v4[4] = {11, x, y, 0}, gateway4[4] = {10, 99, x, y};
        uint8_t v6[16] = {0xfd, 0x11, 0, 0, 0, 0, x, y};
        uint8_t gateway6[16] = {0xfd, 0x99, [14] = x, [15] = y};
        if (family == AF_INET)
            add_route(&batch, family, index, gateway4, v4, 24);
        else
            add_route(&batch, family, index, gateway6, v6, 64);
        transact(fd, &batch, "add route");
    }
    clock_gettime(CLOCK_MONOTONIC, &end);
    printf("%.6f\n", end.tv_sec - start.tv_sec + (end.tv_nsec - start.tv_nsec) / 1e9);
    return 0;
}

int main(int argc, char **argv)
{
    const char *verb = getenv("CNI_COMMAND");
    if (verb)
        return plugin(verb);
    if (argc == 5 && !strcmp(argv[1], "routes"))
        return routes(atoi(argv[2]), argv[3], strcmp(argv[4], "IPv6") ? AF_INET : AF_INET6);
    fprintf(stderr, "usage: %s routes COUNT DEVICE IPv4|IPv6, or as a CNI plugin\n", argv[0]);
    return 2;
}
