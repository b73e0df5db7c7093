/* A stand-in for NVIDIA's libcuda.so.1 and libnvidia-ml.so.1, for machines without a GPU. See README.md beside it.
 *
 * The same file is loaded by workers (who "have a GPU") and by whoever checkpoints them, as with the real driver. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum { RUNNING, LOCKED, CHECKPOINTED, FAILED };
enum { OK = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, NO_DEVICE = 100, INVALID_DEVICE = 101, OPERATING_SYSTEM = 304,
       ILLEGAL_STATE = 401, NOT_FOUND = 500, NOT_READY = 600, NOT_SUPPORTED = 801 };
enum { NONE, LOCK, CHECKPOINT, RESTORE, UNLOCK };
enum { GPUS = 16, PATH = 256, INITIALISED = 0x53545542 };

typedef struct { unsigned char bytes[16]; } Uuid;
typedef struct { Uuid old, new; } Pair;

/* Everything that a worker has of its GPU when it has none: in its own memory, so that CRIU takes it along. */
static volatile struct {
	uint32_t initialised, state, request, result, spoilt;
	int restore_thread; /* as the worker's own PID namespace numbers it */
	char key[33], dir[PATH], device[PATH];
	int gpus, pairs;
	Uuid uuid[GPUS];
	char model[GPUS][64];
	uint64_t used[GPUS];
	Pair pair[GPUS];
	int fd;
	char *host[GPUS]; /* what was on the GPU, while checkpointed */
} mine;

typedef struct { char uuid[48], model[64], pci[32]; uint64_t total; int mig; } Gpu;

/* -- the node: a folder with its GPUs, their memory, the log of calls and the faults to be made */

static const char *node(void) { const char *dir = getenv("CUDA_STUB_DIR"); return dir ? dir : "/nonexistent"; }

static int read_node(const char *dir, const char *name, char *into, size_t size)
{
	char path[PATH * 2];
	snprintf(path, sizeof path, "%s/%s", dir, name);
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0) return -1;
	ssize_t count = read(fd, into, size - 1);
	close(fd);
	into[count < 0 ? 0 : count] = 0;
	return count < 0 ? -1 : 0;
}

static int gpus_of(const char *dir, Gpu *gpus)
{
	char text[4096], *line, *rest = text;
	int count = 0;
	if (read_node(dir, "gpus", text, sizeof text)) return 0;
	while ((line = strsep(&rest, "\n")) && count < GPUS) {
		Gpu *g = &gpus[count];
		if (sscanf(line, "%47[^|]|%63[^|]|%31[^|]|%lu|%d", g->uuid, g->model, g->pci, &g->total, &g->mig) == 5) count++;
	}
	return count;
}

static Uuid parse(const char *text)
{
	Uuid u = {{0}};
	int at = 0;
	for (text += strncmp(text, "GPU-", 4) ? 0 : 4; *text && at < 32; text++) {
		int c = *text, v = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
		if (v >= 0) { u.bytes[at / 2] |= v << (at % 2 ? 0 : 4); at++; }
	}
	return u;
}

static void memory_path(char *path, const char *dir, Uuid u)
{
	int at = snprintf(path, PATH * 2, "%s/memory/", dir);
	for (int i = 0; i < 16; i++) at += sprintf(path + at, "%02x", u.bytes[i]);
	sprintf(path + at, ".%s", (const char *)mine.key);
}

static uint64_t taken(const char *dir, Uuid u)
{
	char path[PATH * 3], prefix[40] = "";
	uint64_t sum = 0;
	for (int i = 0; i < 16; i++) sprintf(prefix + 2 * i, "%02x", u.bytes[i]);
	snprintf(path, sizeof path, "%s/memory", dir);
	DIR *folder = opendir(path);
	for (struct dirent *e; folder && (e = readdir(folder));) {
		struct stat st;
		snprintf(path, sizeof path, "%s/memory/%s", dir, e->d_name);
		if (!strncmp(e->d_name, prefix, 32) && !stat(path, &st)) sum += st.st_size;
	}
	if (folder) closedir(folder);
	return sum;
}

static void note(const char *call, int pid, int result)
{
	char path[PATH * 2], line[128];
	snprintf(path, sizeof path, "%s/calls", node());
	int fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
	if (fd < 0) return;
	ssize_t done = write(fd, line, snprintf(line, sizeof line, "%s %d %d\n", call, pid, result));
	(void)done;
	close(fd);
}

/* What the test wants of this call: 0 nothing, a CUresult, or never to come back. `fault.<call>` holds "<what> <calls to spare> <times>". */
static int fault(const char *call, int pid, unsigned timeout_ms)
{
	char name[64], text[64], what[16], path[PATH * 2];
	int spare = 0, times = 1000000;
	snprintf(name, sizeof name, "fault.%s", call);
	if (read_node(node(), name, text, sizeof text) || sscanf(text, "%15s %d %d", what, &spare, &times) < 1 || times <= 0) return OK;
	snprintf(path, sizeof path, "%s/%s", node(), name);
	FILE *file = fopen(path, "w");
	if (file) { fprintf(file, "%s %d %d\n", what, spare > 0 ? spare - 1 : 0, spare > 0 ? times : times - 1); fclose(file); }
	if (spare > 0) return OK;
	if (!strcmp(what, "busy")) { /* work that doesn't end: the lock gives up after its time, and never without one */
		if (timeout_ms) usleep(timeout_ms * 1000); else for (;;) pause();
		note(call, pid, NOT_READY);
		return NOT_READY;
	}
	if (!strcmp(what, "wait")) { /* in the midst of the call, for as long as the test leaves this file there */
		snprintf(path, sizeof path, "%s/in.%s", node(), call);
		close(open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
		while (!access(path, F_OK)) usleep(1000);
		return OK;
	}
	note(call, pid, atoi(what) ? atoi(what) : -1);
	if (!strcmp(what, "hang")) for (;;) pause();
	if (!strcmp(what, "crash")) { signal(SIGSEGV, SIG_DFL); raise(SIGSEGV); }
	return atoi(what);
}

/* -- inside a worker: its restore thread, which alone touches GPU memory when the driver says so */

static int to_host(int i)
{
	char path[PATH * 2];
	memory_path(path, (const char *)mine.dir, mine.uuid[i]);
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0) return OPERATING_SYSTEM;
	mine.host[i] = malloc(mine.used[i]);
	for (uint64_t at = 0; at < mine.used[i];) {
		ssize_t count = pread(fd, mine.host[i] + at, mine.used[i] - at, at);
		if (count <= 0) { close(fd); return OPERATING_SYSTEM; }
		at += count;
	}
	close(fd);
	unlink(path);
	return OK;
}

static int to_gpu(int i)
{
	char path[PATH * 2];
	memory_path(path, (const char *)mine.dir, mine.uuid[i]);
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	if (fd < 0) return OPERATING_SYSTEM;
	for (uint64_t at = 0; at < mine.used[i];) {
		ssize_t count = pwrite(fd, mine.host[i] + at, mine.used[i] - at, at);
		if (count <= 0) { close(fd); return OPERATING_SYSTEM; }
		at += count;
	}
	close(fd);
	free(mine.host[i]);
	mine.host[i] = NULL;
	return OK;
}

static int checkpoint_here(void)
{
	for (int i = 0; i < mine.gpus; i++)
		if (mine.used[i] && to_host(i)) return OPERATING_SYSTEM;
	if (mine.fd >= 0) close(mine.fd);
	mine.fd = -1;
	mine.state = CHECKPOINTED;
	return OK;
}

static int mapped(int i, Uuid *to)
{
	for (int p = 0; p < mine.pairs; p++)
		if (!memcmp((const void *)&mine.pair[p].old, (const void *)&mine.uuid[i], 16)) { *to = mine.pair[p].new; return 1; }
	*to = mine.uuid[i];
	return !mine.pairs;
}

static int restore_here(void)
{
	Gpu gpus[GPUS];
	Uuid to[GPUS];
	int count = gpus_of((const char *)mine.dir, gpus), at;
	if (mine.spoilt) return ILLEGAL_STATE; /* as on 580: a restore that failed for want of memory can't be had again */
	for (int i = 0; i < mine.gpus; i++) {
		if (!mapped(i, &to[i])) return INVALID_VALUE;
		for (at = 0; at < count; at++) {
			Uuid here = parse(gpus[at].uuid);
			if (!memcmp(&here, &to[i], 16)) break;
		}
		if (at == count) return INVALID_DEVICE;
		if (strcmp(gpus[at].model, (const char *)mine.model[i])) return INVALID_VALUE;
		if (taken((const char *)mine.dir, to[i]) + mine.used[i] > gpus[at].total) { mine.spoilt = 1; return OUT_OF_MEMORY; }
	}
	for (int i = 0; i < mine.gpus; i++) {
		mine.uuid[i] = to[i];
		if (mine.used[i] && to_gpu(i)) return OPERATING_SYSTEM;
	}
	if (mine.device[0]) mine.fd = open((const char *)mine.device, O_RDWR | O_CLOEXEC);
	mine.state = LOCKED;
	return OK;
}

static void *restore_thread(void *unused)
{
	(void)unused;
	mine.restore_thread = syscall(SYS_gettid);
	for (;; usleep(500)) {
		uint32_t request = mine.request, result = OK;
		if (request == NONE) continue;
		if (request == LOCK) mine.state = LOCKED;
		if (request == UNLOCK) mine.state = RUNNING;
		if (request == CHECKPOINT) result = checkpoint_here();
		if (request == RESTORE) result = restore_here();
		mine.result = result;
		__sync_synchronize();
		mine.request = NONE;
	}
	return NULL;
}

static int cuInit(unsigned flags)
{
	Gpu gpus[GPUS];
	int count = gpus_of(node(), gpus), failed = fault("init", 0, 0);
	if (failed) return failed;
	if (flags) return INVALID_VALUE;
	if (!count) return NO_DEVICE;
	return OK;
}

/* A process is a CUDA process once it has a context, not when it has merely asked for the driver's version or for another's state. */
static int begin(void)
{
	Gpu gpus[GPUS];
	pthread_t thread;
	unsigned char random[16];
	if (mine.initialised) return OK;
	snprintf((char *)mine.dir, PATH, "%s", node());
	snprintf((char *)mine.device, PATH, "%s", getenv("CUDA_STUB_DEVICE") ? getenv("CUDA_STUB_DEVICE") : "");
	mine.gpus = gpus_of((const char *)mine.dir, gpus);
	for (int i = 0; i < mine.gpus; i++) { mine.uuid[i] = parse(gpus[i].uuid); strcpy((char *)mine.model[i], gpus[i].model); }
	if (getentropy(random, 16)) return OPERATING_SYSTEM;
	for (int i = 0; i < 16; i++) sprintf((char *)mine.key + 2 * i, "%02x", random[i]);
	mine.fd = mine.device[0] ? open((const char *)mine.device, O_RDWR | O_CLOEXEC) : -1;
	if (mine.device[0] && mine.fd < 0) return OPERATING_SYSTEM;
	sigset_t all, before;
	sigfillset(&all);
	pthread_sigmask(SIG_BLOCK, &all, &before);
	int failed = pthread_create(&thread, NULL, restore_thread, NULL);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (failed) return OPERATING_SYSTEM;
	while (!mine.restore_thread) usleep(100);
	mine.initialised = INITIALISED;
	return OK;
}

static void wait_running(void) { while (mine.state != RUNNING) usleep(200); }

/* -- memory, as a program uses it: a device pointer is the GPU's number in the top bits, and an offset */

static int current;

static int cuDriverGetVersion(int *version)
{
	char text[16];
	int failed = fault("version", 0, 0);
	if (failed) return failed;
	*version = read_node(node(), "cuda", text, sizeof text) ? 13000 : atoi(text);
	return OK;
}
static int cuDeviceGetCount(int *count) { Gpu gpus[GPUS]; *count = gpus_of(node(), gpus); return OK; }
static int cuDeviceGet(int *device, int ordinal) { *device = ordinal; return OK; }
static int cuDevicePrimaryCtxRetain(void **context, int device)
{
	int failed = begin();
	if (failed) return failed;
	if (device < 0 || device >= mine.gpus) return INVALID_DEVICE;
	*context = (void *)(uintptr_t)(device + 1);
	return OK;
}
static int cuCtxSetCurrent(void *context) { current = (int)(uintptr_t)context - 1; return current < 0 ? INVALID_VALUE : OK; }

static int cuMemAlloc(uint64_t *pointer, size_t size)
{
	Gpu gpus[GPUS];
	char path[PATH * 2];
	wait_running();
	if (!mine.initialised) return NOT_INITIALIZED;
	gpus_of((const char *)mine.dir, gpus);
	if (taken((const char *)mine.dir, mine.uuid[current]) + size > gpus[current].total) return OUT_OF_MEMORY;
	memory_path(path, (const char *)mine.dir, mine.uuid[current]);
	int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
	if (fd < 0 || ftruncate(fd, mine.used[current] + size)) return OPERATING_SYSTEM;
	close(fd);
	*pointer = ((uint64_t)(current + 1) << 48) | mine.used[current];
	mine.used[current] += size;
	return OK;
}

static int transfer(uint64_t pointer, void *host, size_t size, int out)
{
	char path[PATH * 2];
	int i = (int)(pointer >> 48) - 1;
	off_t at = pointer & 0xffffffffffffULL;
	wait_running();
	if (i < 0 || i >= mine.gpus || at + size > mine.used[i]) return INVALID_VALUE;
	memory_path(path, (const char *)mine.dir, mine.uuid[i]);
	int fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd < 0) return OPERATING_SYSTEM;
	ssize_t done = out ? pread(fd, host, size, at) : pwrite(fd, host, size, at);
	close(fd);
	return done == (ssize_t)size ? OK : OPERATING_SYSTEM;
}
static int cuMemcpyHtoD(uint64_t pointer, void *host, size_t size) { return transfer(pointer, host, size, 0); }
static int cuMemcpyDtoH(void *host, uint64_t pointer, size_t size) { return transfer(pointer, host, size, 1); }

/* -- another process: found by where this very library lies in its memory */

static uintptr_t base_of(int pid)
{
	char path[64], line[512];
	uintptr_t base = 0;
	snprintf(path, sizeof path, "/proc/%d/maps", pid);
	FILE *file = fopen(path, "re");
	while (file && !base && fgets(line, sizeof line, file))
		if (strstr(line, "/libcuda.so.1")) sscanf(line, "%lx", &base);
	if (file) fclose(file);
	return base;
}

static int touch(int pid, size_t offset, void *data, size_t size, int write)
{
	uintptr_t ours = base_of(getpid()), theirs = base_of(pid);
	struct iovec here = {data, size}, there = {(char *)&mine - ours + theirs + offset, size};
	if (!ours || !theirs) return -1;
	return (write ? process_vm_writev : process_vm_readv)(pid, &here, 1, &there, 1, 0) == (ssize_t)size ? 0 : -1;
}
#define AT(field) ((size_t)((char *)&mine.field - (char *)&mine))
#define GET(pid, field, into) touch(pid, AT(field), into, sizeof mine.field, 0)
#define PUT(pid, field, from) touch(pid, AT(field), from, sizeof mine.field, 1)

static int other(int pid, uint32_t *state)
{
	char path[64], line[256];
	uint32_t initialised = 0;
	int leader = 0;
	snprintf(path, sizeof path, "/proc/%d/status", pid);
	FILE *file = fopen(path, "re");
	while (file && fgets(line, sizeof line, file)) sscanf(line, "Tgid: %d", &leader);
	if (file) fclose(file);
	if (leader != pid || GET(pid, initialised, &initialised) || initialised != INITIALISED) return INVALID_VALUE;
	return GET(pid, state, state) ? OPERATING_SYSTEM : OK;
}

static int ask(int pid, uint32_t request)
{
	uint32_t open = request, result;
	if (PUT(pid, request, &open)) return OPERATING_SYSTEM;
	for (; open != NONE; usleep(300)) /* for ever, if the restore thread stands still */
		if (GET(pid, request, &open)) return OPERATING_SYSTEM;
	return GET(pid, result, &result) ? OPERATING_SYSTEM : (int)result;
}

static int step(const char *call, int pid, uint32_t from, uint32_t request, unsigned timeout_ms)
{
	uint32_t state;
	int result = fault(call, pid, timeout_ms);
	if (result) return result;
	if (!(result = other(pid, &state))) result = state == from ? ask(pid, request) : ILLEGAL_STATE;
	note(call, pid, result);
	return result;
}

typedef struct { unsigned timeout_ms; unsigned reserved[15]; } LockArgs;
typedef struct { Pair *pairs; unsigned count; } RestoreArgs;

static int cuCheckpointProcessGetState(int pid, uint32_t *state)
{
	int result = fault("state", pid, 0);
	return result ? result : other(pid, state);
}
static int cuCheckpointProcessGetRestoreThreadId(int pid, int *tid)
{
	char path[300], line[256];
	uint32_t state;
	int wanted, result = fault("thread", pid, 0);
	if (result || (result = other(pid, &state))) return result;
	if (GET(pid, restore_thread, &wanted)) return OPERATING_SYSTEM;
	snprintf(path, sizeof path, "/proc/%d/task", pid);
	DIR *folder = opendir(path);
	result = NOT_FOUND;
	for (struct dirent *e; folder && (e = readdir(folder));) {
		snprintf(path, sizeof path, "/proc/%d/task/%s/status", pid, e->d_name);
		FILE *file = fopen(path, "re");
		while (file && fgets(line, sizeof line, file))
			if (!strncmp(line, "NSpid:", 6) && atoi(strrchr(line, '\t') + 1) == wanted) { *tid = atoi(e->d_name); result = OK; }
		if (file) fclose(file);
	}
	if (folder) closedir(folder);
	return result;
}
static int cuCheckpointProcessLock(int pid, LockArgs *args) { return step("lock", pid, RUNNING, LOCK, args ? args->timeout_ms : 0); }
static int cuCheckpointProcessCheckpoint(int pid, void *args) { (void)args; return step("checkpoint", pid, LOCKED, CHECKPOINT, 0); }
static int cuCheckpointProcessUnlock(int pid, void *args) { (void)args; return step("unlock", pid, LOCKED, UNLOCK, 0); }
static int cuCheckpointProcessRestore(int pid, RestoreArgs *args)
{
	char dir[PATH] = "", device[PATH] = "";
	Pair pairs[GPUS];
	int count = args && args->pairs ? (int)args->count : 0;
	memset(pairs, 0, sizeof pairs);
	if (count > GPUS) return INVALID_VALUE;
	if (count) memcpy(pairs, args->pairs, count * sizeof(Pair));
	snprintf(dir, sizeof dir, "%s", node());
	snprintf(device, sizeof device, "%s", getenv("CUDA_STUB_DEVICE") ? getenv("CUDA_STUB_DEVICE") : "");
	PUT(pid, dir, dir);
	PUT(pid, device, device);
	PUT(pid, pairs, &count);
	PUT(pid, pair, pairs);
	return step("restore", pid, CHECKPOINTED, RESTORE, 0);
}

static int cuGetErrorName(int error, const char **name)
{
	static const struct { int code; const char *name; } names[] = {
		{0, "CUDA_SUCCESS"}, {1, "CUDA_ERROR_INVALID_VALUE"}, {2, "CUDA_ERROR_OUT_OF_MEMORY"}, {600, "CUDA_ERROR_NOT_READY"}};
	for (unsigned i = 0; i < sizeof names / sizeof *names; i++) if (names[i].code == error) { *name = names[i].name; return OK; }
	*name = NULL;
	return INVALID_VALUE;
}

#define NAMED(call) {#call, (void *)call}
static const struct { const char *name; void *at; } calls[] = {
	NAMED(cuInit), NAMED(cuDriverGetVersion), NAMED(cuDeviceGetCount), NAMED(cuDeviceGet), NAMED(cuDevicePrimaryCtxRetain),
	NAMED(cuCtxSetCurrent), NAMED(cuMemAlloc), NAMED(cuMemcpyHtoD), NAMED(cuMemcpyDtoH), NAMED(cuGetErrorName),
	NAMED(cuCheckpointProcessGetState), NAMED(cuCheckpointProcessGetRestoreThreadId), NAMED(cuCheckpointProcessLock),
	NAMED(cuCheckpointProcessCheckpoint), NAMED(cuCheckpointProcessRestore), NAMED(cuCheckpointProcessUnlock)};

/* How cuda.bindings finds everything else. A node with a file `old` has a driver from before there were checkpoints. */
int cuGetProcAddress_v2(const char *name, void **at, int version, uint64_t flags, int *status)
{
	char text[8];
	(void)version, (void)flags;
	*at = NULL;
	if (status) *status = 1;
	if (!strncmp(name, "cuCheckpoint", 12) && !read_node(node(), "old", text, sizeof text)) return OK;
	for (unsigned i = 0; i < sizeof calls / sizeof *calls; i++)
		if (!strcmp(calls[i].name, name)) { *at = calls[i].at; if (status) *status = 0; }
	return OK;
}

/* -- NVML: what there is on the node */

typedef struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; } Pci;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } Memory;
typedef struct { unsigned pid; unsigned long long used; unsigned instance, compute; } Process;

int nvmlInit_v2(void) { char text[8]; return read_node(node(), "nvml-fault", text, sizeof text) ? OK : atoi(text); }
int nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(int result) { return result == 15 ? "GPU is lost" : "told to fail"; }
int nvmlSystemGetDriverVersion(char *version, unsigned length)
{
	if (read_node(node(), "driver", version, length)) snprintf(version, length, "580.95.05");
	version[strcspn(version, "\n")] = 0;
	return OK;
}
int nvmlDeviceGetCount_v2(unsigned *count) { Gpu gpus[GPUS]; *count = gpus_of(node(), gpus); return OK; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device)
{
	char text[8];
	if (!read_node(node(), "lost", text, sizeof text) && (unsigned)atoi(text) == index) return 15; /* NVML_ERROR_GPU_IS_LOST */
	*device = (void *)(uintptr_t)(index + 1);
	return OK;
}
static Gpu at_handle(void *device) { Gpu gpus[GPUS]; gpus_of(node(), gpus); return gpus[(uintptr_t)device - 1]; }
int nvmlDeviceGetName(void *device, char *name, unsigned length) { snprintf(name, length, "%s", at_handle(device).model); return OK; }
int nvmlDeviceGetUUID(void *device, char *uuid, unsigned length) { snprintf(uuid, length, "%s", at_handle(device).uuid); return OK; }
int nvmlDeviceGetPciInfo_v3(void *device, Pci *pci)
{
	memset(pci, 0, sizeof *pci);
	snprintf(pci->bus_id, sizeof pci->bus_id, "%s", at_handle(device).pci);
	return OK;
}
int nvmlDeviceGetMemoryInfo_v2(void *device, Memory *memory)
{
	Gpu gpu = at_handle(device);
	memory->total = gpu.total;
	memory->reserved = 0;
	memory->used = taken(node(), parse(gpu.uuid));
	memory->free = memory->total - memory->used;
	return OK;
}
int nvmlDeviceGetMigMode(void *device, unsigned *now, unsigned *pending)
{
	int mig = at_handle(device).mig;
	if (mig < 0) return 3; /* a GPU that has no such thing: NVML_ERROR_NOT_SUPPORTED */
	*now = *pending = mig;
	return OK;
}
int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, Process *found)
{
	Uuid wanted = parse(at_handle(device).uuid), theirs[GPUS];
	uint64_t used[GPUS];
	char dir[PATH];
	unsigned room = *count, at = 0;
	int gpus;
	DIR *folder = opendir("/proc");
	for (struct dirent *e; folder && (e = readdir(folder));) {
		int pid = atoi(e->d_name);
		uint32_t state;
		if (pid <= 0 || other(pid, &state) || state == CHECKPOINTED || GET(pid, dir, dir) || strcmp(dir, node())) continue;
		if (GET(pid, gpus, &gpus) || GET(pid, uuid, theirs) || GET(pid, used, used)) continue;
		for (int i = 0; i < gpus; i++)
			if (!memcmp(&theirs[i], &wanted, 16) && used[i]) {
				if (at < room && found) found[at] = (Process){pid, used[i], ~0u, ~0u};
				at++;
			}
	}
	if (folder) closedir(folder);
	*count = at;
	return at > room ? 7 : OK; /* NVML_ERROR_INSUFFICIENT_SIZE */
}
