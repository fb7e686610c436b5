/* Asks Windows for a restart in a second, as wicd.exe does. */
#include <windows.h>

int main(void)
{
    return InitiateSystemShutdownExW(NULL, NULL, 1, TRUE, TRUE, 0) ? 0 : 1;
}
