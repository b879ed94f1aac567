mod netlink;
