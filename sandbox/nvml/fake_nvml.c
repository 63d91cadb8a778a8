/*
 * A stand-in for NVIDIA's libnvidia-ml.so.1, for laptops and tests.
 *
 * It answers the NVML calls that the agent makes through pynvml from a scenario
 * file (environment: FAKE_NVML_SCENARIO), which is read again whenever it
 * is replaced, so hardware can change under a running program. The file is flat
 * `key=value` lines; sandbox/nvml/scenario.py writes and checks it. Rules:
 *
 *   - A fact that the scenario does not name answers NOT_SUPPORTED.
 *   - `host.rc.CALL`, `gpu.N.rc.CALL` (or CALL = `*`) make a call return that code;
 *     `.delay_ms.` makes it slow; `.hang.` keeps it from returning until the
 *     scenario no longer says so.
 *   - What real NVML enumerates at init is fixed per session here too: a GPU that
 *     was replaced or taken out answers GPU_IS_LOST until the library is
 *     initialised again. Only the count follows the scenario at once.
 *   - `event.N=BUS TYPE DATA` is one event; a set delivers those with a number
 *     above the highest one that was there when the set was made.
 *
 * Struct layouts are the ABI as pynvml declares it; nothing is taken from NVIDIA's
 * header. Linux only.
 */

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define API __attribute__((visibility("default")))

enum {
    OK = 0,
    UNINITIALIZED = 1,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7,
    DRIVER_NOT_LOADED = 9,
    TIMED_OUT = 10,
    FUNCTION_NOT_FOUND = 13,
    GPU_IS_LOST = 15,
    ARGUMENT_VERSION_MISMATCH = 25,
};

enum { MAX_ENTRIES = 8192, MAX_LINE = 512, MAX_GPUS = 64, MAX_PROCESSES = 256, NAME = 96 };

typedef int result;

struct entry {
    char key[NAME];
    char value[MAX_LINE];
};

/* One handle. Never freed: a stale one must answer, not crash. */
struct device {
    unsigned session;
    char bus[32];
    char uuid[NAME];
    int mig; /* position below its parent, -1 for a physical GPU */
};

struct event_set {
    unsigned session;
    long seen;
    int count;
    struct device *devices[MAX_GPUS];
    unsigned long long types[MAX_GPUS];
};

struct pci_info {
    char bus_legacy[16];
    unsigned domain, bus, device, pci_device_id, pci_subsystem_id;
    char bus_id[32];
};

struct memory_v1 {
    unsigned long long total, free, used;
};

struct memory_v2 {
    unsigned version;
    unsigned long long total, reserved, free, used;
};

struct process {
    unsigned pid;
    unsigned long long used_memory;
    unsigned gpu_instance, compute_instance;
};

struct attributes {
    unsigned multiprocessors, copy_engines, decoders, encoders, jpegs, ofas;
    unsigned gpu_slices, compute_slices;
    unsigned long long memory_mb;
};

struct fabric_v1 {
    uint8_t cluster[16];
    unsigned status;
    uint32_t clique;
    uint8_t state;
};

struct fabric_v3 {
    unsigned version;
    uint8_t cluster[16];
    unsigned status;
    uint32_t clique;
    uint8_t state;
    uint32_t health_mask;
    uint8_t health_summary; /* v3 only */
};

struct platform {
    unsigned version;
    char ib_guid[16];
    char chassis_serial[16];
    char slot, tray, host, peer_type, module;
};

struct cc_state {
    unsigned environment, cc_feature, dev_tools;
};

struct cc_settings {
    unsigned version, environment, cc_feature, dev_tools, multi_gpu;
};

struct event_data {
    struct device *device;
    unsigned long long type, data;
    unsigned gpu_instance, compute_instance;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct entry *entries;
static int entry_count;
static long last_event; /* highest number of one */
static int knobs; /* whether any entry is one: without them a call costs little, as the real one */
static char loaded_path[4096];
static struct stat loaded;
static unsigned references;
static unsigned session;
static struct device *session_devices[MAX_GPUS];
static int session_count;

/* --- scenario ------------------------------------------------------------------ */

static int by_key(const void *left, const void *right) {
    return strcmp(((const struct entry *)left)->key, ((const struct entry *)right)->key);
}

static const char *find(const char *key) {
    struct entry wanted;
    snprintf(wanted.key, sizeof wanted.key, "%.*s", NAME - 1, key);
    const struct entry *entry = entry_count == 0
        ? NULL
        : bsearch(&wanted, entries, (size_t)entry_count, sizeof *entries, by_key);
    return entry ? entry->value : NULL;
}

static const char *host_value(const char *name) {
    char key[NAME * 2];
    snprintf(key, sizeof key, "host.%s", name);
    return find(key);
}

static const char *gpu_value(int gpu, const char *name) {
    char key[NAME * 2];
    snprintf(key, sizeof key, "gpu.%d.%s", gpu, name);
    return find(key);
}

static const char *mig_value(int gpu, int mig, const char *name) {
    char key[NAME * 2];
    snprintf(key, sizeof key, "gpu.%d.mig.%d.%s", gpu, mig, name);
    return find(key);
}

static long number(const char *text, long fallback) {
    return text ? strtol(text, NULL, 0) : fallback;
}

static long event_number(const struct entry *entry) {
    return strncmp(entry->key, "event.", 6) == 0 ? strtol(entry->key + 6, NULL, 10) : -1;
}

static void parse_line(char *line) {
    char *equals = strchr(line, '=');
    line[strcspn(line, "\n")] = 0;
    if (line[0] == '#' || !equals || entry_count == MAX_ENTRIES) return;
    *equals = 0;
    struct entry *entry = &entries[entry_count++];
    snprintf(entry->key, sizeof entry->key, "%.*s", NAME - 1, line);
    snprintf(entry->value, sizeof entry->value, "%.*s", MAX_LINE - 1, equals + 1);
    if (event_number(entry) > last_event) last_event = event_number(entry);
    if (strstr(line, ".rc.") || strstr(line, ".delay_ms.") || strstr(line, ".hang.")) knobs = 1;
}

static int unchanged(const char *path, const struct stat *now) {
    return strcmp(path, loaded_path) == 0 && now->st_ino == loaded.st_ino &&
           now->st_size == loaded.st_size && now->st_mtim.tv_sec == loaded.st_mtim.tv_sec &&
           now->st_mtim.tv_nsec == loaded.st_mtim.tv_nsec;
}

/* Without a readable scenario there is no driver; the caller holds the lock. */
static result reload(void) {
    const char *path = getenv("FAKE_NVML_SCENARIO");
    struct stat now;
    if (!path || stat(path, &now) != 0) return DRIVER_NOT_LOADED;
    if (unchanged(path, &now)) return OK;
    FILE *file = fopen(path, "r");
    if (!file) return DRIVER_NOT_LOADED;
    if (!entries) entries = calloc(MAX_ENTRIES, sizeof *entries);
    char line[NAME + MAX_LINE];
    entry_count = knobs = 0;
    last_event = -1;
    while (entries && fgets(line, sizeof line, file)) parse_line(line);
    qsort(entries, (size_t)entry_count, sizeof *entries, by_key);
    fstat(fileno(file), &loaded);
    fclose(file);
    snprintf(loaded_path, sizeof loaded_path, "%s", path);
    return OK;
}

static int scenario_gpus(void) {
    long count = number(host_value("gpus"), 0);
    return (int)(count < 0 ? 0 : count > MAX_GPUS ? MAX_GPUS : count);
}

static int position_of(const char *bus) {
    for (int i = 0; i < scenario_gpus(); i++) {
        const char *here = gpu_value(i, "pci_bus_id");
        if (here && strcmp(here, bus) == 0) return i;
    }
    return -1;
}

/* --- entering a call -------------------------------------------------------------- */

static void pause_ms(long ms) {
    struct timespec left = {ms / 1000, (ms % 1000) * 1000000L};
    while (nanosleep(&left, &left) != 0 && errno == EINTR) continue;
}

/* `what` of a call: rc, delay_ms or hang, by the GPU (-1: host) and then for any call. */
static long knob(int gpu, const char *what, const char *call, long fallback) {
    char name[NAME];
    const char *value;
    if (!knobs) return fallback;
    snprintf(name, sizeof name, "%s.%s", what, call);
    value = gpu < 0 ? host_value(name) : gpu_value(gpu, name);
    if (value) return number(value, fallback);
    snprintf(name, sizeof name, "%s.*", what);
    value = gpu < 0 ? host_value(name) : gpu_value(gpu, name);
    return number(value, fallback);
}

static void obey_delays(int gpu, const char *call) {
    long delay = knob(gpu, "delay_ms", call, 0);
    if (delay > 0) {
        pthread_mutex_unlock(&lock);
        pause_ms(delay);
        pthread_mutex_lock(&lock);
        reload();
    }
    while (knob(gpu, "hang", call, 0)) {
        pthread_mutex_unlock(&lock);
        pause_ms(10);
        pthread_mutex_lock(&lock);
        reload();
    }
}

/* Takes the lock, which leave() gives back, whatever comes out. */
static result enter_library(const char *call) {
    pthread_mutex_lock(&lock);
    result rc = reload();
    if (rc != OK) return rc;
    obey_delays(-1, call);
    return (result)knob(-1, "rc", call, OK);
}

static result enter(const char *call) {
    result rc = enter_library(call);
    if (rc != OK) return rc;
    return references ? OK : UNINITIALIZED;
}

static result leave(result rc) {
    pthread_mutex_unlock(&lock);
    return rc;
}

static int still_there(const struct device *device, int gpu) {
    const char *uuid = gpu < 0 ? NULL : gpu_value(gpu, "uuid");
    return uuid && (device->mig >= 0 || strcmp(uuid, device->uuid) == 0);
}

/* Like enter(), for one device; `gpu` becomes its place in the scenario. */
static result enter_device(const char *call, const struct device *device, int *gpu) {
    result rc = enter(call);
    if (rc != OK) return rc;
    if (!device || device->session != session) return INVALID_ARGUMENT;
    *gpu = position_of(device->bus);
    if (!still_there(device, *gpu)) return GPU_IS_LOST;
    obey_delays(*gpu, call);
    *gpu = position_of(device->bus);
    if (!still_there(device, *gpu)) return GPU_IS_LOST;
    return (result)knob(*gpu, "rc", call, OK);
}

static const char *fact(const struct device *device, int gpu, const char *name) {
    return device->mig < 0 ? gpu_value(gpu, name) : mig_value(gpu, device->mig, name);
}

static result text(const char *call, struct device *device, const char *name, char *out,
                   unsigned size) {
    int gpu;
    result rc = enter_device(call, device, &gpu);
    if (rc != OK) return leave(rc);
    const char *value = fact(device, gpu, name);
    if (!value) return leave(NOT_SUPPORTED);
    if (strlen(value) + 1 > size) return leave(INSUFFICIENT_SIZE);
    memcpy(out, value, strlen(value) + 1);
    return leave(OK);
}

static result word(const char *call, struct device *device, const char *name, unsigned *out) {
    int gpu;
    result rc = enter_device(call, device, &gpu);
    if (rc != OK) return leave(rc);
    const char *value = fact(device, gpu, name);
    if (!value) return leave(NOT_SUPPORTED);
    *out = (unsigned)strtoul(value, NULL, 0);
    return leave(OK);
}

static result mode(const char *call, struct device *device, const char *name, unsigned *current,
                   unsigned *pending) {
    result rc = word(call, device, name, current);
    if (rc == OK) *pending = *current;
    return rc;
}

/* --- library and host --------------------------------------------------------------- */

static struct device *make_device(const char *bus, const char *uuid, int mig) {
    struct device *device = calloc(1, sizeof *device);
    if (!device) abort();
    device->session = session;
    device->mig = mig;
    snprintf(device->bus, sizeof device->bus, "%s", bus);
    snprintf(device->uuid, sizeof device->uuid, "%s", uuid);
    return device;
}

static void open_session(void) {
    session++;
    session_count = 0;
    for (int i = 0; i < scenario_gpus(); i++) {
        const char *bus = gpu_value(i, "pci_bus_id"), *uuid = gpu_value(i, "uuid");
        if (bus) session_devices[session_count++] = make_device(bus, uuid ? uuid : "", -1);
    }
}

API result nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    result rc = enter_library(__func__);
    if (rc == OK && references++ == 0) open_session();
    return leave(rc);
}

API result nvmlInit_v2(void) { return nvmlInitWithFlags(0); }

API result nvmlShutdown(void) {
    result rc = enter_library(__func__);
    if (!references) return leave(UNINITIALIZED);
    references--;
    return leave(rc);
}

API const char *nvmlErrorString(result rc) {
    static char words[32];
    snprintf(words, sizeof words, "fake NVML error %d", rc);
    return words;
}

static result host_text(const char *call, const char *name, char *out, unsigned size) {
    result rc = enter(call);
    if (rc != OK) return leave(rc);
    const char *value = host_value(name);
    if (!value) return leave(NOT_SUPPORTED);
    if (strlen(value) + 1 > size) return leave(INSUFFICIENT_SIZE);
    memcpy(out, value, strlen(value) + 1);
    return leave(OK);
}

/* Whatever the scenario says, the driver's version tells that there is none: controllers know it by
   this end (gpuwarden/evidence/stand_in.py). Tests and the sandbox leave it out, to stand for real
   hardware. */
#ifdef STANDS_FOR_REAL
#define STAND_IN_MARK ""
#else
#define STAND_IN_MARK "+evaluation"
#endif

API result nvmlSystemGetDriverVersion(char *out, unsigned size) {
    result rc = host_text(__func__, "driver", out, size);
#ifndef STANDS_FOR_REAL
    if (rc == NOT_SUPPORTED && size > 0) {
        out[0] = 0;
        rc = OK;
    }
#endif
    if (rc != OK) return rc;
    if (strlen(out) + sizeof STAND_IN_MARK > size) return INSUFFICIENT_SIZE;
    strcat(out, STAND_IN_MARK);
    return OK;
}

API result nvmlSystemGetNVMLVersion(char *out, unsigned size) {
    return host_text(__func__, "nvml", out, size);
}

API result nvmlSystemGetCudaDriverVersion_v2(int *out) {
    result rc = enter(__func__);
    if (rc != OK) return leave(rc);
    const char *value = host_value("cuda");
    if (!value) return leave(NOT_SUPPORTED);
    *out = (int)number(value, 0);
    return leave(OK);
}

API result nvmlSystemGetConfComputeState(struct cc_state *out) {
    result rc = enter(__func__);
    if (rc != OK) return leave(rc);
    if (!host_value("cc_feature")) return leave(NOT_SUPPORTED);
    out->environment = 0;
    out->cc_feature = (unsigned)number(host_value("cc_feature"), 0);
    out->dev_tools = (unsigned)number(host_value("cc_dev_tools"), 0);
    return leave(OK);
}

API result nvmlSystemGetConfComputeSettings(struct cc_settings *out) {
    result rc = enter(__func__);
    if (rc != OK) return leave(rc);
    if (!host_value("cc_feature")) return leave(NOT_SUPPORTED);
    if (out->version != 0x1000014) return leave(ARGUMENT_VERSION_MISMATCH);
    out->environment = 0;
    out->cc_feature = (unsigned)number(host_value("cc_feature"), 0);
    out->dev_tools = (unsigned)number(host_value("cc_dev_tools"), 0);
    out->multi_gpu = (unsigned)number(host_value("cc_multi_gpu"), 0);
    return leave(OK);
}

/* --- devices ------------------------------------------------------------------------- */

API result nvmlDeviceGetCount_v2(unsigned *out) {
    result rc = enter(__func__);
    if (rc == OK) *out = (unsigned)scenario_gpus();
    return leave(rc);
}

API result nvmlDeviceGetHandleByIndex_v2(unsigned index, struct device **out) {
    result rc = enter(__func__);
    if (rc != OK) return leave(rc);
    if (index >= (unsigned)session_count) return leave(INVALID_ARGUMENT);
    struct device *device = session_devices[index];
    int gpu = position_of(device->bus);
    if (!still_there(device, gpu)) return leave(GPU_IS_LOST);
    obey_delays(gpu, __func__);
    *out = device;
    return leave((result)knob(gpu, "rc", __func__, OK));
}

API result nvmlDeviceGetIndex(struct device *device, unsigned *out) {
    int gpu;
    result rc = enter_device(__func__, device, &gpu);
    if (rc == OK) *out = (unsigned)gpu;
    return leave(rc);
}

API result nvmlDeviceGetUUID(struct device *device, char *out, unsigned size) {
    return text(__func__, device, "uuid", out, size);
}

API result nvmlDeviceGetSerial(struct device *device, char *out, unsigned size) {
    return text(__func__, device, "serial", out, size);
}

API result nvmlDeviceGetBoardPartNumber(struct device *device, char *out, unsigned size) {
    return text(__func__, device, "board_part_number", out, size);
}

API result nvmlDeviceGetName(struct device *device, char *out, unsigned size) {
    return text(__func__, device, "name", out, size);
}

API result nvmlDeviceGetVbiosVersion(struct device *device, char *out, unsigned size) {
    return text(__func__, device, "vbios", out, size);
}

API result nvmlDeviceGetGspFirmwareVersion(struct device *device, char *out) {
    return text(__func__, device, "gsp", out, 0x40);
}

API result nvmlDeviceGetGspFirmwareMode(struct device *device, unsigned *enabled,
                                        unsigned *by_default) {
    return mode(__func__, device, "gsp_enabled", enabled, by_default);
}

static void fill_pci(struct pci_info *out, const char *bus) {
    memset(out, 0, sizeof *out);
    snprintf(out->bus_id, sizeof out->bus_id, "%s", bus);
    sscanf(bus, "%x:%x:%x", &out->domain, &out->bus, &out->device);
    snprintf(out->bus_legacy, sizeof out->bus_legacy, "%04X:%02X:%02X.0", out->domain & 0xffff,
             out->bus & 0xff, out->device & 0xff);
}

API result nvmlDeviceGetPciInfo_v3(struct device *device, struct pci_info *out) {
    int gpu;
    result rc = enter_device(__func__, device, &gpu);
    if (rc != OK) return leave(rc);
    fill_pci(out, device->bus);
    out->pci_device_id = (unsigned)number(gpu_value(gpu, "pci_device_id"), 0);
    out->pci_subsystem_id = (unsigned)number(gpu_value(gpu, "pci_subsystem_id"), 0);
    return leave(OK);
}

static result total_memory(const char *call, struct device *device, unsigned long long *out) {
    int gpu;
    result rc = enter_device(call, device, &gpu);
    if (rc != OK) return leave(rc);
    const char *value = fact(device, gpu, "memory_bytes");
    if (!value) return leave(NOT_SUPPORTED);
    *out = strtoull(value, NULL, 0);
    return leave(OK);
}

API result nvmlDeviceGetMemoryInfo(struct device *device, struct memory_v1 *out) {
    result rc = total_memory(__func__, device, &out->total);
    out->free = out->total;
    out->used = 0;
    return rc;
}

API result nvmlDeviceGetMemoryInfo_v2(struct device *device, struct memory_v2 *out) {
    if (out->version != 0x2000028) return FUNCTION_NOT_FOUND; /* as the real one, not 25 */
    result rc = total_memory(__func__, device, &out->total);
    out->free = out->total;
    out->used = out->reserved = 0;
    return rc;
}

API result nvmlDeviceGetEccMode(struct device *device, unsigned *current, unsigned *pending) {
    return mode(__func__, device, "ecc", current, pending);
}

API result nvmlDeviceGetMigMode(struct device *device, unsigned *current, unsigned *pending) {
    return mode(__func__, device, "mig_mode", current, pending);
}

API result nvmlDeviceGetVirtualizationMode(struct device *device, unsigned *out) {
    return word(__func__, device, "virtualization", out);
}

API result nvmlDeviceGetCudaComputeCapability(struct device *device, int *major, int *minor) {
    unsigned both;
    result rc = word(__func__, device, "compute_capability", &both);
    if (rc != OK) return rc;
    *major = (int)(both / 10);
    *minor = (int)(both % 10);
    return OK;
}

API result nvmlDeviceGetArchitecture(struct device *device, unsigned *out) {
    return word(__func__, device, "architecture", out);
}

API result nvmlDeviceGetComputeMode(struct device *device, unsigned *out) {
    return word(__func__, device, "compute_mode", out);
}

API result nvmlDeviceGetPersistenceMode(struct device *device, unsigned *out) {
    return word(__func__, device, "persistence", out);
}

API result nvmlDeviceGetModuleId(struct device *device, unsigned *out) {
    return word(__func__, device, "module_id", out);
}

/* --- MIG ---------------------------------------------------------------------------- */

API result nvmlDeviceGetMaxMigDeviceCount(struct device *device, unsigned *out) {
    return word(__func__, device, "max_mig", out);
}

API result nvmlDeviceGetMigDeviceHandleByIndex(struct device *device, unsigned index,
                                               struct device **out) {
    int gpu;
    result rc = enter_device(__func__, device, &gpu);
    if (rc != OK) return leave(rc);
    const char *uuid = mig_value(gpu, (int)index, "uuid");
    if (!uuid) return leave(NOT_FOUND);
    *out = make_device(device->bus, uuid, (int)index);
    return leave(OK);
}

API result nvmlDeviceGetAttributes_v2(struct device *device, struct attributes *out) {
    int gpu;
    result rc = enter_device(__func__, device, &gpu);
    if (rc != OK) return leave(rc);
    const char *slices = fact(device, gpu, "gpu_slices");
    if (device->mig < 0 || !slices) return leave(NOT_SUPPORTED);
    memset(out, 0, sizeof *out);
    out->gpu_slices = (unsigned)number(slices, 0);
    out->compute_slices = (unsigned)number(fact(device, gpu, "compute_slices"), 0);
    out->memory_mb = (unsigned long long)number(fact(device, gpu, "memory_mb"), 0);
    return leave(OK);
}

/* --- links and fabric ----------------------------------------------------------------- */

static result link_value(const char *call, struct device *device, unsigned index,
                         const char *name, char out[MAX_LINE]) {
    int gpu;
    char key[NAME];
    result rc = enter_device(call, device, &gpu);
    if (rc != OK) return leave(rc);
    unsigned links = (unsigned)number(gpu_value(gpu, "links"), 0);
    if (index >= links) return leave(links ? INVALID_ARGUMENT : NOT_SUPPORTED);
    snprintf(key, sizeof key, "link.%u.%s", index, name);
    const char *value = gpu_value(gpu, key);
    if (!value) return leave(NOT_SUPPORTED);
    snprintf(out, MAX_LINE, "%s", value);
    return leave(OK);
}

API result nvmlDeviceGetNvLinkState(struct device *device, unsigned index, unsigned *out) {
    char value[MAX_LINE];
    result rc = link_value(__func__, device, index, "active", value);
    if (rc == OK) *out = (unsigned)number(value, 0);
    return rc;
}

API result nvmlDeviceGetNvLinkRemotePciInfo_v2(struct device *device, unsigned index,
                                               struct pci_info *out) {
    char value[MAX_LINE];
    result rc = link_value(__func__, device, index, "peer", value);
    if (rc == OK) fill_pci(out, value);
    return rc;
}

API result nvmlDeviceGetNvLinkRemoteDeviceType(struct device *device, unsigned index,
                                               unsigned *out) {
    char value[MAX_LINE];
    result rc = link_value(__func__, device, index, "peer_type", value);
    if (rc == OK) *out = (unsigned)number(value, 0);
    return rc;
}

static void read_hex16(const char *hex, uint8_t out[16]) {
    memset(out, 0, 16);
    for (int i = 0; hex && i < 16 && hex[2 * i] && hex[2 * i + 1]; i++) {
        unsigned byte = 0;
        sscanf(hex + 2 * i, "%2x", &byte);
        out[i] = (uint8_t)byte;
    }
}

static result fabric(const char *call, struct device *device, struct fabric_v1 *out) {
    int gpu;
    result rc = enter_device(call, device, &gpu);
    if (rc != OK) return leave(rc);
    if (!gpu_value(gpu, "fabric_state")) return leave(NOT_SUPPORTED);
    read_hex16(gpu_value(gpu, "fabric_cluster"), out->cluster);
    out->status = (unsigned)number(gpu_value(gpu, "fabric_status"), 0);
    out->clique = (uint32_t)number(gpu_value(gpu, "fabric_clique"), 0);
    out->state = (uint8_t)number(gpu_value(gpu, "fabric_state"), 0);
    return leave(OK);
}

API result nvmlDeviceGetGpuFabricInfo(struct device *device, struct fabric_v1 *out) {
    return fabric(__func__, device, out);
}

API result nvmlDeviceGetGpuFabricInfoV(struct device *device, struct fabric_v3 *out) {
    struct fabric_v1 facts;
    pthread_mutex_lock(&lock);
    unsigned highest = reload() == OK ? (unsigned)number(host_value("fabric_version"), 3) : 3;
    pthread_mutex_unlock(&lock);
    unsigned version = out->version >> 24, size = out->version & 0xffffff;
    if (version < 2 || version > highest || size != (version == 2 ? 36 : 40))
        return ARGUMENT_VERSION_MISMATCH;
    result rc = fabric(__func__, device, &facts);
    if (rc != OK) return rc;
    memcpy(out->cluster, facts.cluster, 16);
    out->status = facts.status;
    out->clique = facts.clique;
    out->state = facts.state;
    out->health_mask = 0;
    if (version == 3) out->health_summary = 1;
    return OK;
}

API result nvmlDeviceGetPlatformInfo(struct device *device, struct platform *out) {
    int gpu;
    result rc = enter_device(__func__, device, &gpu);
    if (rc != OK) return leave(rc);
    const char *chassis = gpu_value(gpu, "chassis_serial");
    if (!chassis) return leave(NOT_SUPPORTED);
    long supported = number(host_value("platform_version"), 2);
    /* A driver of today answers in its own version, whatever it is asked for, and in 1 if asked for
     * that; an older one is assumed not to. */
    int oldest = out->version == (1u << 24 | 44);
    if (supported < 2 && !oldest) return leave(ARGUMENT_VERSION_MISMATCH);
    memset(out, 0, sizeof *out);
    out->version = oldest ? 1u << 24 | 44 : 2u << 24 | 44;
    if (!oldest) memcpy(out->chassis_serial, chassis, strnlen(chassis, 16));
    out->module = (char)number(gpu_value(gpu, "platform_module"), 0);
    return leave(OK);
}

/* --- processes ----------------------------------------------------------------------- */

/* The scenario's list is blank-separated process ids. */
static result processes(const char *call, struct device *device, const char *name,
                        unsigned *count, struct process *out) {
    int gpu;
    unsigned found = 0, room = *count;
    result rc = enter_device(call, device, &gpu);
    if (rc != OK) return leave(rc);
    const char *list = gpu_value(gpu, name);
    if (!list) return leave(NOT_SUPPORTED);
    for (char *end; found < MAX_PROCESSES; list = end, found++) {
        unsigned pid = (unsigned)strtoul(list, &end, 10);
        if (end == list) break;
        if (out && found < room) out[found] = (struct process){pid, 0, ~0u, ~0u};
    }
    *count = found;
    return leave(found > (out ? room : 0) ? INSUFFICIENT_SIZE : OK);
}

API result nvmlDeviceGetComputeRunningProcesses_v3(struct device *device, unsigned *count,
                                                   struct process *out) {
    return processes(__func__, device, "compute_pids", count, out);
}

API result nvmlDeviceGetComputeRunningProcesses_v2(struct device *device, unsigned *count,
                                                   struct process *out) {
    return processes(__func__, device, "compute_pids", count, out);
}

API result nvmlDeviceGetGraphicsRunningProcesses_v3(struct device *device, unsigned *count,
                                                    struct process *out) {
    return processes(__func__, device, "graphics_pids", count, out);
}

API result nvmlDeviceGetGraphicsRunningProcesses_v2(struct device *device, unsigned *count,
                                                    struct process *out) {
    return processes(__func__, device, "graphics_pids", count, out);
}

/* --- events -------------------------------------------------------------------------- */

API result nvmlDeviceGetSupportedEventTypes(struct device *device, unsigned long long *out) {
    unsigned types;
    result rc = word(__func__, device, "event_types", &types);
    if (rc == OK) *out = types;
    return rc;
}

API result nvmlEventSetCreate(struct event_set **out) {
    result rc = enter(__func__);
    if (rc != OK) return leave(rc);
    struct event_set *set = calloc(1, sizeof *set); /* never freed, like devices */
    if (!set) abort();
    set->session = session;
    if (last_event > set->seen) set->seen = last_event;
    *out = set;
    return leave(OK);
}

API result nvmlDeviceRegisterEvents(struct device *device, unsigned long long types,
                                    struct event_set *set) {
    int gpu;
    result rc = enter_device(__func__, device, &gpu);
    if (rc != OK) return leave(rc);
    if (set->session != session || set->count == MAX_GPUS) return leave(INVALID_ARGUMENT);
    const char *supported = fact(device, gpu, "event_types");
    if (!supported || types & ~strtoull(supported, NULL, 0)) return leave(NOT_SUPPORTED);
    set->devices[set->count] = device;
    set->types[set->count++] = types;
    return leave(OK);
}

/* The oldest undelivered event of a registered device; the caller holds the lock. */
static int next_event(struct event_set *set, struct event_data *out) {
    const struct entry *next = NULL;
    if (last_event <= set->seen) return 0;
    for (int i = 0; i < entry_count; i++) {
        long n = event_number(&entries[i]);
        if (n > set->seen && (!next || n < event_number(next))) next = &entries[i];
    }
    if (!next) return 0;
    char bus[32] = "";
    set->seen = event_number(next);
    *out = (struct event_data){.gpu_instance = ~0u, .compute_instance = ~0u};
    if (sscanf(next->value, "%31s %llu %llu", bus, &out->type, &out->data) != 3) return 0;
    for (int i = 0; i < set->count; i++)
        if (strcmp(set->devices[i]->bus, bus) == 0 && (set->types[i] & out->type))
            out->device = set->devices[i];
    return out->device != NULL;
}

static long now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* Tells when something in the folder of the scenario is replaced; -1 where it cannot. One per
 * process, for closing one takes long. A waiter may miss what another one has read: both look
 * at the scenario once more when their time is over. */
static int watch_scenario(void) {
    static int watch = -1;
    const char *path = getenv("FAKE_NVML_SCENARIO");
    const char *slash = path ? strrchr(path, '/') : NULL;
    char folder[4096] = ".";
    if (slash) snprintf(folder, sizeof folder, "%.*s", (int)(slash - path + 1), path);
    pthread_mutex_lock(&lock);
    if (watch < 0) watch = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
    pthread_mutex_unlock(&lock);
    unsigned replaced = IN_MOVED_TO | IN_MOVED_FROM | IN_CLOSE_WRITE | IN_DELETE;
    return path && inotify_add_watch(watch, folder, replaced) >= 0 ? watch : -1;
}

/* Sleeps as the real call does, so that waiting costs as little: until something happens. */
static void await_change(int watch, long ms) {
    char told[4096];
    struct pollfd ready = {.fd = watch, .events = POLLIN};
    if (watch < 0) {
        pause_ms(ms < 10 ? ms : 10);
    } else if (poll(&ready, 1, (int)ms) > 0) {
        while (read(watch, told, sizeof told) > 0) continue;
    }
}

API result nvmlEventSetWait_v2(struct event_set *set, struct event_data *out, unsigned ms) {
    long end = now_ms() + ms;
    int watch = watch_scenario();
    for (;;) {
        result rc = enter(__func__);
        if (rc == OK && set->session != session) rc = INVALID_ARGUMENT;
        int delivered = rc == OK && next_event(set, out);
        leave(rc);
        if (rc != OK || delivered) return rc;
        long left = end - now_ms();
        if (left <= 0) return TIMED_OUT;
        await_change(watch, left);
    }
}

API result nvmlEventSetFree(struct event_set *set) {
    result rc = enter(__func__);
    if (rc == OK && set->session != session) rc = INVALID_ARGUMENT;
    return leave(rc);
}
