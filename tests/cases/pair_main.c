// Two objects that need each other: functions, data, and a static of the same name in both.
int puts(const char *);
int even(unsigned n);
extern const char *const greeting;
extern int counter;
static int step = 2;

int odd(unsigned n) {
    counter += step;
    return n ? even(n - 1) : 0;
}

int main(void) {
    puts(greeting);
    return even(10) ? counter : 100;
}
