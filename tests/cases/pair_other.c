// The other half of pair_main.c.
int odd(unsigned n);
const char *const greeting = "from the other object";
int counter = 1;
static int step = 3;

int even(unsigned n) {
    counter += step;
    return n ? odd(n - 1) : 1;
}
