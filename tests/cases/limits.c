/* Runs for ever, in the way its argument names. */
int puts(const char *);
void *malloc(unsigned long);
void free(void *);
/* The hosted executor's alone. */
unsigned sleep(unsigned) __attribute__((weak));

static int same(const char *a, const char *b) {
    while (*a && *a == *b) a++, b++;
    return *a == *b;
}

static volatile unsigned long turns;

int main(int argc, char **argv) {
    const char *how = argc > 0 ? argv[0] : "";
    puts(how);
    if (same(how, "spin"))
        for (;;) turns++;
    if (same(how, "jump-to-self"))
        __asm__ volatile("1: jmp 1b");
    if (same(how, "interrupts-off"))
        __asm__ volatile("cli\n1: jmp 1b");
    if (same(how, "print"))
        for (;;) puts("again");
    if (same(how, "allocate"))
        for (;;) free(malloc(100));
    if (same(how, "direction-flag"))
        __asm__ volatile("std\n1: jmp 1b");
    if (same(how, "sleep"))
        sleep(1000);
    return 7;
}
