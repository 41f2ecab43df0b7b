// 1 MiB of code, run from the first byte to the last, with calls across it in both directions.
int puts(const char *);
enum { STEPS = 1 << 18 };

int near_the_start(int x) { return x + 1; }

// Four bytes of code per step: the function is STEPS * 4 bytes long.
__attribute__((noinline)) static int straight(int x) {
    __asm__ volatile(".rept 1 << 18\n\tleal 1(%%rax), %%eax\n\tnop\n\t.endr" : "+a"(x));
    return x;
}

int after_it(int x) { return near_the_start(x) * 2; }

int main(void) {
    int x = straight(7);
    if (x != STEPS + 7)
        return 100;
    puts("one mebibyte");
    return after_it(20);
}
