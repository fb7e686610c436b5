/* iphlpapi.dll for wicd.exe: all of Wine's (kept as iphlpapiw.dll, which the other exports lead to), and what Wine lacks of routes. They are
   listed; a card has no metric of its own, and none can be made. */
#include <winsock2.h>
#include <ws2ipdef.h>
#include <windows.h>
#include <netioapi.h>
#include <string.h>

VOID NETIOAPI_API_ InitializeIpInterfaceEntry(PMIB_IPINTERFACE_ROW row) { memset(row, 0, sizeof *row); }

NETIO_STATUS NETIOAPI_API_ GetIpInterfaceEntry(PMIB_IPINTERFACE_ROW row)
{
    row->Metric = 0;
    return NO_ERROR;
}

VOID NETIOAPI_API_ InitializeIpForwardEntry(PMIB_IPFORWARD_ROW2 row) { memset(row, 0, sizeof *row); }

NETIO_STATUS NETIOAPI_API_ CreateIpForwardEntry2(const MIB_IPFORWARD_ROW2 *row)
{
    (void)row;
    return ERROR_NOT_SUPPORTED;
}
