// Every access that goes through the global offset table in position independent code: load, compare, call, jump and
// push of symbols defined here, elsewhere, in the executor and nowhere. Linkers may relax each of them.
int puts(const char *);
int putchar(int);
extern int far_number;
extern int far_function(int);
__attribute__((weak)) extern int nowhere;
int near_number = 5;
int near_function(int x) { return x + near_number; }
int (*volatile from_table)(int);

__attribute__((noinline)) static int tail(int x) { return far_function(x); }

static int compare(void *p) {
    int same;
    __asm__("cmpq near_number@GOTPCREL(%%rip), %1\n\tsete %%al\n\tmovzbl %%al, %0" : "=a"(same) : "r"(p) : "cc");
    return same;
}

static long test(void *p) {
    long zero;
    __asm__("testq %1, far_number@GOTPCREL(%%rip)\n\tsetz %%al\n\tmovzbq %%al, %0" : "=a"(zero) : "r"(p) : "cc");
    return zero;
}

static int *pushed(void) {
    int *p;
    // The stack pointer steps over the red zone first.
    __asm__("leaq -128(%%rsp), %%rsp\n\tpushq near_number@GOTPCREL(%%rip)\n\tpopq %0\n\tleaq 128(%%rsp), %%rsp" : "=r"(p));
    return p;
}

static int (*loaded(void))(int) {
    int (*p)(int);
    __asm__("movq near_function@GOTPCREL(%%rip), %0" : "=r"(p));
    return p;
}

int main(void) {
    if (&nowhere)
        return 100;
    if (!compare(&near_number) || compare(&far_number))
        return 101;
    if (test(&far_number))
        return 102;
    if (pushed() != &near_number)
        return 103;
    if (loaded() != near_function)
        return 104;
    from_table = far_function;
    far_number += 1;
    putchar('g'), putchar('o'), putchar('t'), putchar('\n');
    puts("relaxed or not");
    return from_table(far_number) + tail(1) + near_function(0);
}
