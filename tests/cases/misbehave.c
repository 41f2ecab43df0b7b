// Ends badly, or strangely, in the way its first argument says.
typedef unsigned long size_t;
int puts(const char *);
void abort(void);
void exit(int);
void *malloc(size_t);
static int differ(const char *a, const char *b) {
    while (*a && *a == *b)
        a++, b++;
    return *a - *b;
}

int main(int, char **);
static volatile int zero;
static unsigned char data[] = {0xc3};

// Not a tail call, and nothing to fold: every level keeps its frame.
__attribute__((noinline)) static int deeper(volatile int *above) {
    volatile int here[64];
    here[0] = *above + 1;
    return deeper(here) + here[0];
}

int main(int argc, char **argv) {
    const char *how = argc > 0 ? argv[0] : "";
    puts(how);
    if (!differ(how, "read-null"))
        return *(volatile int *)0;
    if (!differ(how, "write-null"))
        *(volatile int *)8 = 1;
    if (!differ(how, "read-far"))
        return *(volatile int *)0x600000000000;
    if (!differ(how, "read-noncanonical"))
        return *(volatile int *)0x1234567812345678;
    if (!differ(how, "write-code"))
        *(volatile unsigned char *)main = 0xc3;
    if (!differ(how, "run-data"))
        ((void (*)(void))data)();
    if (!differ(how, "jump-null"))
        ((void (*)(void))(size_t)zero)();
    if (!differ(how, "undefined"))
        __asm__ volatile("ud2");
    if (!differ(how, "divide"))
        return (argc + 6) / zero;
    if (!differ(how, "trap"))
        __asm__ volatile("int3");
    if (!differ(how, "reset")) { // no interrupt table: a triple fault
        struct { unsigned short limit; size_t base; } __attribute__((packed)) none = {0, 0};
        __asm__ volatile("lidt %0; int3" : : "m"(none));
    }
    // Privileged: what a debug register may do, and interrupts that an instruction raises.
    if (!differ(how, "watch-data")) {
        __asm__ volatile("mov %0, %%dr0; mov %1, %%dr7" : : "r"(&zero), "r"(0xf0002ul));
        zero = 1;
    }
    if (!differ(how, "break-runtime"))
        __asm__ volatile("mov %0, %%dr0; mov %1, %%dr7" : : "r"(&puts), "r"(2ul));
    if (!differ(how, "break-runtime-and-call")) {
        __asm__ volatile("mov %0, %%dr0; mov %1, %%dr7" : : "r"(&puts), "r"(2ul));
        puts("called");
    }
    if (!differ(how, "int-8"))
        __asm__ volatile("int $8");
    if (!differ(how, "int-13"))
        __asm__ volatile("int $13");
    if (!differ(how, "int-14"))
        __asm__ volatile("int $14");
    if (!differ(how, "int-200"))
        __asm__ volatile("int $200");
    if (!differ(how, "overflow-stack"))
        return deeper((volatile int[]){argc});
    if (!differ(how, "abort"))
        abort();
    if (!differ(how, "exit"))
        exit(7);
    if (!differ(how, "use-up"))
        for (volatile char *block; (block = malloc(1 << 20));)
            for (size_t i = 0; i < 1 << 20; i += 4096)
                block[i] = 1; // and never given back
    if (!differ(how, "loop"))
        for (;;)
            zero = 0;
    if (!differ(how, "large"))
        return 300;
    if (!differ(how, "negative"))
        return -1;
    return 0;
}
