// The larger half of common_main.c.
int shared[64];
int *other_shared(void) { return shared; }
int other_sum(void) {
    for (int i = 4; i < 64; i++) {
        if (shared[i])
            return 200;
        shared[i] = 1;
    }
    int sum = 0;
    for (int i = 0; i < 64; i++)
        sum += shared[i];
    return sum; // 1 + 2 + 3 + 4 + 60
}
