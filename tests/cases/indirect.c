// Calls through tables and pointers, also to a function of the executor.
int puts(const char *);

static int add(int a, int b) { return a + b; }
static int sub(int a, int b) { return a - b; }
static int mul(int a, int b) { return a * b; }
typedef int (*binary)(int, int);
static binary const table[] = {add, sub, mul};
static int (*say)(const char *) = puts;
binary volatile chosen = add;

int main(void) {
    int value = 1;
    for (int i = 0; i < 9; i++)
        value = table[i % 3](value, i + 2);
    say("said through a pointer");
    return chosen(value, 0) & 0xff;
}
