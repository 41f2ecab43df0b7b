// .data, .bss and .rodata, with pointers between them in both directions.
int puts(const char *);

static const char *const words[] = {"alpha", "beta", "gamma"};
static int numbers[] = {3, 5, 7, 11};
static int *middle = &numbers[2];
static int zeroed[300];
static const int *const *where = (const int *const *)&middle;
const struct link { const struct link *next; int value; } second = {0, 20}, first = {&second, 10};
static const char *pick = "picked by a pointer in .data";

int main(void) {
    for (unsigned i = 0; i < sizeof words / sizeof *words; i++)
        puts(words[i]);
    puts(pick);
    for (int i = 0; i < 300; i++)
        if (zeroed[i])
            return 100;
    zeroed[299] = **where;                              // 7
    middle++;                                           // 11
    int sum = *middle + zeroed[299];                    // 18
    for (const struct link *l = &first; l; l = l->next) // 48
        sum += l->value;
    return sum;
}
