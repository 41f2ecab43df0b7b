// The little that Rust's standard library asks of a C library to panic and catch: memory comes from the executor, and
// whatever needs an operating system fails.
#include <stddef.h>

void *aligned_alloc(size_t align, size_t size);
int memcmp(const void *a, const void *b, size_t len);
void graft_write(const char *bytes, size_t len);

static int error = 38; // ENOSYS

int *__errno_location(void) { return &error; }

int posix_memalign(void **block, size_t align, size_t size) {
    *block = aligned_alloc(align, size);
    return *block ? 0 : 12;
}

int bcmp(const void *a, const void *b, size_t len) { return memcmp(a, b, len); }

long write(int file, const char *bytes, size_t len) {
    graft_write(bytes, len);
    return (long)len;
}

int pthread_key_create(unsigned *key, void (*destructor)(void *)) { return *key = 1, 0; }
int pthread_key_delete(unsigned key) { return 0; }
int pthread_setspecific(unsigned key, const void *value) { return 0; }
char *getenv(const char *name) { return NULL; }
char *getcwd(char *buffer, size_t size) { return NULL; }
char *realpath(const char *path, char *resolved) { return NULL; }

#define FAILS(name) long name(void) { return -1; }
FAILS(close) FAILS(munmap) FAILS(syscall) FAILS(read) FAILS(open64) FAILS(writev) FAILS(fstat64) FAILS(lseek64)
FAILS(stat64) FAILS(mmap64) FAILS(readlink)
