// A COMMON symbol of 16 bytes here and 256 bytes in common_other.c: one object, of the larger size, zeroed.
int puts(const char *);
int shared[4];
int only_here;
extern int *other_shared(void);
extern int other_sum(void);

int main(void) {
    if (other_shared() != shared)
        return 100;
    for (int i = 0; i < 4; i++)
        shared[i] = i + 1;
    only_here = 3;
    puts("one object of the larger size");
    return other_sum() + only_here;
}
