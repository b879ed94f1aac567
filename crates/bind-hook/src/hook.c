// Compares each bind(2) below a control group with the claimed ports. attached.rs has the same layouts of maps and
// records.
#include <linux/bpf.h>

#define SEC(name) __attribute__((section(name), used))
#define INLINE static inline __attribute__((always_inline))
#define HELPER(type, name, ...) static type (*const bpf_##name)(__VA_ARGS__) = (void *)BPF_FUNC_##name
#define EADDRINUSE 98
// If this bit is set in a claim's number, the hook never refuses binds of the claim.
#define NEVER_REFUSED (1U << 31)
// The part of ::ffff:0.0.0.0/96 that is not zero.
#define MAPPED __builtin_bswap32(0xffff)

HELPER(void *, map_lookup_elem, void *map, const void *key);
HELPER(__u64, get_current_pid_tgid, void);
HELPER(__u64, get_current_uid_gid, void);
HELPER(long, get_current_comm, void *to, __u32 size);
HELPER(__u64, get_current_cgroup_id, void);
HELPER(__u64, get_current_ancestor_cgroup_id, int level);
HELPER(__u64, get_netns_cookie, void *context);
HELPER(__u64, ktime_get_boot_ns, void);
HELPER(void *, ringbuf_reserve, void *map, __u64 size, __u64 flags);
HELPER(void, ringbuf_submit, void *record, __u64 flags);
HELPER(int, set_retval, int value);

struct map { __u32 type, key_size, value_size, max_entries, map_flags; };
// Each value is one u64, so a reader never sees half of a value.
enum { NAMESPACE, NONCE, FRESH_UNTIL, REFUSES, GENERATION, LOST, STATES };
// Keys are written to the stack in whole words. A shorter store can spill the register of a number. Without the
// capability PERFMON, the verifier of Linux 6.1 refuses a shorter store to a word with a spilled register:
// check_stack_write_fixed_off in kernel/bpf/verifier.c.
union claim_key { struct { __u32 generation; __u16 port; __u8 protocol, is_some; __u32 address[4]; }; __u64 words[3]; };
union exempt_key { struct { __u64 id; __u32 kind, claim; }; __u64 words[2]; };
enum { CGROUP, PROCESS };
enum { ALLOWED, REFUSED, TOO_OLD, FAMILY_UNKNOWN };
struct record { __u64 cgroup; __u32 pid, uid, claim; __u16 port; __u8 protocol, answer; __u32 address[4]; char name[16]; };

SEC("maps") struct map STATE = {BPF_MAP_TYPE_ARRAY, 4, 8, STATES, 0};
// While new claims replace old claims, the map has both generations.
SEC("maps") struct map CLAIMS = {BPF_MAP_TYPE_HASH, sizeof(union claim_key), 4, 1 << 17, BPF_F_NO_PREALLOC};
SEC("maps") struct map EXEMPT = {BPF_MAP_TYPE_HASH, sizeof(union exempt_key), 4, 1 << 14, BPF_F_NO_PREALLOC};
SEC("maps") struct map BINDS = {BPF_MAP_TYPE_RINGBUF, 0, 0, 1 << 16, 0};

INLINE __u64 *state(__u32 of) { return bpf_map_lookup_elem(&STATE, &of); }

INLINE int is_in(__u64 id, __u32 kind, __u32 claim)
{
	union exempt_key of_claim = {{id, kind, claim}}, of_all = {{id, kind, 0}};
	__u64 first[] = {id, of_claim.words[1]}, second[] = {id, of_all.words[1]};
	return bpf_map_lookup_elem(&EXEMPT, first) || bpf_map_lookup_elem(&EXEMPT, second);
}

// If a control group is exempt, the groups below it are exempt too: the group of a container is below the group of its
// pod.
INLINE int is_exempt(__u32 claim)
{
	if (is_in(bpf_get_current_pid_tgid() >> 32, PROCESS, claim))
		return 1;
#pragma unroll
	for (int level = 0; level < 16; level++) {
		__u64 id = bpf_get_current_ancestor_cgroup_id(level);
		if (!id)
			return 0;
		if (is_in(id, CGROUP, claim))
			return 1;
	}
	return 0;
}

INLINE __u32 claim_of(union claim_key *key)
{
	__u64 words[] = {key->words[0], key->words[1], key->words[2]};
	__u32 *claim = bpf_map_lookup_elem(&CLAIMS, words);
	return claim ? *claim : 0;
}

// The number of the claim that this address meets, or 0. A wildcard address meets any claim of its family. Another
// address meets the claims of this address, and the claims of the wildcard address.
INLINE __u32 met(union claim_key *key, int is_ipv6)
{
	key->is_some = !(key->address[0] | key->address[1] | key->address[3]) && (is_ipv6 ? !key->address[2] : 1);
	__u32 claim = claim_of(key);
	if (claim || key->is_some)
		return claim;
	union claim_key wildcard = {{key->generation, key->port, key->protocol, 0, {0, 0, is_ipv6 ? 0 : key->address[2], 0}}};
	return claim_of(&wildcard);
}

// Without IPV6_V6ONLY, a bind of :: takes the port of IPv4 too. No hook can read this option.
INLINE __u32 claimed(union claim_key *key, int is_ipv6, int *answer)
{
	__u32 claim = met(key, is_ipv6);
	*answer = ALLOWED;
	if (claim || !is_ipv6 || !key->is_some)
		return claim;
	key->address[2] = MAPPED;
	claim = met(key, 0);
	key->address[2] = 0;
	*answer = FAMILY_UNKNOWN;
	return claim;
}

INLINE int hook(struct bpf_sock_addr *bind, __u32 a, __u32 b, __u32 c, __u32 d, int is_ipv6, int sets_error, int names)
{
	__u64 *namespace = state(NAMESPACE), *nonce = state(NONCE), *until = state(FRESH_UNTIL);
	__u64 *refuses = state(REFUSES), *generation = state(GENERATION), *lost = state(LOST);
	if (!namespace || !nonce || !until || !refuses || !generation || !lost)
		return 1;
	// The field has eight bits. In eight bits, MPTCP (262) has the value of TCP (6). MPTCP sockets listen for TCP, so this
	// is right.
	union claim_key key = {{*generation, __builtin_bswap16(bind->user_port), bind->protocol, 0, {a, b, c, d}}};
	// The kernel chooses a free port, so no claim is met.
	if (!key.port)
		return 1;
	__u64 here = bpf_get_netns_cookie(bind);
	// The process that attached this hook binds an address that no other process knows. So the hook learns the process's
	// network namespace.
	if (!*namespace && *nonce && *nonce == ((__u64)__builtin_bswap32(d) << 16 | key.port))
		*namespace = here;
	if (here != *namespace)
		return 1;
	int was_mapped = is_ipv6 && !a && !b && c == MAPPED, answer;
	__u32 claim = claimed(&key, is_ipv6 && !was_mapped, &answer);
	__u32 now = *(volatile __u64 *)generation;
	if (!claim && key.generation != now) {
		// The claims were replaced meanwhile, and the old claims may have been removed.
		key.generation = now;
		claim = claimed(&key, is_ipv6 && !was_mapped, &answer);
	}
	if (!claim || is_exempt(claim & ~NEVER_REFUSED))
		return 1;
	if (*refuses && answer == ALLOWED && !(claim & NEVER_REFUSED))
		answer = bpf_ktime_get_boot_ns() < *until ? REFUSED : TOO_OLD;
	struct record *record = bpf_ringbuf_reserve(&BINDS, sizeof(*record), 0);
	if (record) {
		record->cgroup = bpf_get_current_cgroup_id();
		record->pid = bpf_get_current_pid_tgid() >> 32;
		record->uid = bpf_get_current_uid_gid();
		record->claim = claim & ~NEVER_REFUSED;
		record->port = key.port;
		record->protocol = key.protocol;
		record->answer = answer;
		__builtin_memcpy(record->address, key.address, sizeof(record->address));
		if (names)
			bpf_get_current_comm(record->name, sizeof(record->name));
		else
			__builtin_memset(record->name, 0, sizeof(record->name));
		bpf_ringbuf_submit(record, 0);
	} else {
		__sync_fetch_and_add(lost, 1);
	}
	if (answer != REFUSED)
		return 1;
	// Without this call, the kernel answers EPERM.
	if (sets_error)
		bpf_set_retval(-EADDRINUSE);
	return 0;
}

#define IPV4(...) hook(bind, 0, 0, MAPPED, bind->user_ip4, 0, __VA_ARGS__)
#define IPV6(...) hook(bind, bind->user_ip6[0], bind->user_ip6[1], bind->user_ip6[2], bind->user_ip6[3], 1, __VA_ARGS__)
SEC("cgroup/bind4") int bind4(struct bpf_sock_addr *bind) { return IPV4(0, 1); }
SEC("cgroup/bind6") int bind6(struct bpf_sock_addr *bind) { return IPV6(0, 1); }
// These two programs need Linux 5.18.
SEC("cgroup/bind4") int bind4_in_use(struct bpf_sock_addr *bind) { return IPV4(1, 1); }
SEC("cgroup/bind6") int bind6_in_use(struct bpf_sock_addr *bind) { return IPV6(1, 1); }
// Without the capability PERFMON, Linux 6.18 does not show the name of the process. Linux 6.1 does.
SEC("cgroup/bind4") int bind4_unnamed(struct bpf_sock_addr *bind) { return IPV4(1, 0); }
SEC("cgroup/bind6") int bind6_unnamed(struct bpf_sock_addr *bind) { return IPV6(1, 0); }

SEC("license") char terms[] = "Apache-2.0";
