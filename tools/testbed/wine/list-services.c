/* list-services.exe: every Win32 service as "STATE NAME" on a line of its own. Wine's `sc query` needs a name. */
#include <stdio.h>
#include <windows.h>

int main(void)
{
    static const char *const states[] = {"UNKNOWN", "STOPPED", "START_PENDING", "STOP_PENDING", "RUNNING",
                                         "CONTINUE_PENDING", "PAUSE_PENDING", "PAUSED"};
    static BYTE buffer[256 * 1024];
    ENUM_SERVICE_STATUS_PROCESSW *services = (void *)buffer;
    DWORD needed, count, resume = 0, i;
    SC_HANDLE manager = OpenSCManagerW(NULL, NULL, SC_MANAGER_ENUMERATE_SERVICE);

    if (!manager || !EnumServicesStatusExW(manager, SC_ENUM_PROCESS_INFO, SERVICE_WIN32, SERVICE_STATE_ALL, buffer,
                                           sizeof buffer, &needed, &count, &resume, NULL)) {
        fprintf(stderr, "error %lu\n", GetLastError());
        return 1;
    }
    for (i = 0; i < count; i++) {
        DWORD state = services[i].ServiceStatusProcess.dwCurrentState;
        printf("%s %ls\n", states[state < 8 ? state : 0], services[i].lpServiceName);
    }
    return 0;
}
