// Jump tables: a dense switch, a sparse one, and computed gotos; an interpreter loop over them.
int puts(const char *);

__attribute__((noinline)) static int dense(int op, int x) {
    switch (op) {
    case 0: return x + 1;
    case 1: return x * 3;
    case 2: return x - 4;
    case 3: return x ^ 5;
    case 4: return x | 6;
    case 5: return x & 0x7fff;
    case 6: return x << 1;
    case 7: return x >> 1;
    case 8: puts("eight"); return x;
    case 9: return -x;
    case 10: return ~x;
    case 11: return x % 1009;
    default: return 0;
    }
}

__attribute__((noinline)) static const char *name(unsigned op) {
    switch (op) {
    case 0: return "add";
    case 1: return "multiply";
    case 2: return "subtract";
    case 3: return "exclusive or";
    case 4: return "or";
    case 5: return "and";
    case 1000: return "thousand";
    case 70000: return "seventy thousand";
    default: return "unknown";
    }
}

static int threaded(const unsigned char *code) {
    static const void *const labels[] = {&&inc, &&dbl, &&neg, &&end};
    int x = 0;
    goto *labels[*code++];
inc: x++; goto *labels[*code++];
dbl: x *= 2; goto *labels[*code++];
neg: x = -x; goto *labels[*code++];
end: return x;
}

int main(void) {
    int x = 17;
    for (int i = 0; i < 36; i++)
        x = dense((i * 7) % 12, x);
    puts(name(3)), puts(name(1000)), puts(name(70000)), puts(name(6));
    static const unsigned char code[] = {0, 1, 1, 0, 1, 2, 3};
    return (x & 0x3f) - threaded(code);
}
