// A gigabyte of zero-fill: more than the machine has, and less than its address space.
static volatile unsigned char gigabyte[1 << 30];
int main(void) { return gigabyte[12345]; }
