// Compiled with -g: the debug sections stay on the host, and their relocations do not disturb.
int puts(const char *);
struct point { int x, y; };
static struct point points[] = {{1, 2}, {3, 4}, {5, 6}};

static int weigh(const struct point *p) { return p->x * 2 + p->y; }

int main(void) {
    int sum = 0;
    for (int i = 0; i < 3; i++)
        sum += weigh(&points[i]);
    puts("with debug information");
    return sum;
}
