// The allocator and the memory functions that the executor lends to loaded code.
typedef unsigned long size_t;
int puts(const char *);
void *malloc(size_t);
void free(void *);
void *realloc(void *, size_t);
void *aligned_alloc(size_t, size_t);
void *memcpy(void *, const void *, size_t);
void *memmove(void *, const void *, size_t);
void *memset(void *, int, size_t);
int memcmp(const void *, const void *, size_t);
size_t strlen(const char *);

static char *join(const char *a, const char *b) {
    size_t na = strlen(a), nb = strlen(b);
    char *out = malloc(na + nb + 1);
    memcpy(out, a, na);
    memcpy(out + na, b, nb + 1);
    return out;
}

int main(void) {
    char *s = join("made of ", "two pieces");
    puts(s);
    s = realloc(s, 4000);
    memmove(s + 5, s, strlen(s) + 1);
    memset(s, '>', 5);
    puts(s);
    if (memcmp(s + 5, "made", 4) != 0 || memcmp("a", "b", 1) >= 0)
        return 100;
    free(s);
    char *page = aligned_alloc(4096, 8192);
    if (!page || (size_t)page % 4096)
        return 101;
    memset(page, 0x5a, 8192);
    free(page);
    unsigned *blocks[100], sum = 0;
    for (unsigned i = 0; i < 100; i++) {
        blocks[i] = malloc(64 * (i + 1));
        if (!blocks[i] || (size_t)blocks[i] % 16)
            return 102;
        memset(blocks[i], (int)i, 64 * (i + 1));
    }
    for (unsigned i = 0; i < 100; i += 2)
        free(blocks[i]);
    for (unsigned i = 1; i < 100; i += 2) {
        if (blocks[i][16 * i] != i * 0x01010101u)
            return 103;
        sum += blocks[i][0] & 0xff;
        free(blocks[i]);
    }
    free(0);
    return sum % 251; // 2500 % 251
}
